// Report to JSON and back.
#include <fmt/format.h>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/verify/report.h"

namespace ref5d {
namespace {

// Rows of fields to an array of objects.
template <class Row, class ToObject>
Json to_array(const std::vector<Row>& rows, const ToObject& to_object) {
  Json array = Json::array();
  for (const Row& row : rows) array.push_back(to_object(row));
  return array;
}

Json check_to_json(const Check& c) {
  Json object = Json::object(
      {{"name", c.name}, {"measure", c.measure}, {"value", c.value}, {"tolerance", c.tolerance}, {"pass", c.pass}});
  if (!(c.max_abs < 0)) object.append_member("max_abs", Json(c.max_abs));
  return object;
}

Json claim_to_json(const Claim& c) {
  return Json::object({{"name", c.name},
                       {"expected", c.expected},
                       {"measured", c.measured},
                       {"tolerance", c.tolerance},
                       {"pass", c.pass},
                       {"unit", c.unit},
                       {"note", c.note}});
}

Json traffic_to_json(const TrafficRow& t) {
  return Json::object({{"axis", t.axis},
                       {"op", t.op},
                       {"phase", t.phase},
                       {"calls", t.calls},
                       {"payload_bytes", t.payload_bytes},
                       {"wire_bytes", t.wire_bytes},
                       {"total_calls", t.total_calls},
                       {"total_payload_bytes", t.total_payload_bytes},
                       {"total_wire_bytes", t.total_wire_bytes},
                       {"wire_counted", t.wire_counted},
                       {"total_between_nodes_bytes", t.total_between_nodes_bytes}});
}

Json memory_to_json(const MemoryRow& m) {
  return Json::object(
      {{"rank", m.rank}, {"category", m.category}, {"current_bytes", m.current_bytes}, {"peak_bytes", m.peak_bytes}});
}

Json load_to_json(const ExpertLoad& l) {
  return Json::object({{"step", l.step},
                       {"layer", l.layer},
                       {"routed", l.routed},
                       {"choices", Json::array_of(l.choices)},
                       {"rows", Json::array_of(l.rows)},
                       {"rank_rows", Json::array_of(l.rank_rows)},
                       {"computed", l.computed},
                       {"imbalance", l.imbalance()},
                       {"rank_imbalance", l.rank_imbalance()},
                       {"dropped", l.dropped()},
                       {"padding", l.padding()}});
}

Check check_from_json(const Json& j) {
  const Json* max_abs = j.find("max_abs");
  return {j.at("name").as_string(),      j.at("measure").as_string(), j.at("value").as_double(),
          j.at("tolerance").as_double(), j.at("pass").as_bool(),      max_abs == nullptr ? -1 : max_abs->as_double()};
}

Claim claim_from_json(const Json& j) {
  return {j.at("name").as_string(), j.at("expected").as_double(), j.at("measured").as_double(), j.at("tolerance").as_double(),
          j.at("pass").as_bool(),   j.at("unit").as_string(),     j.at("note").as_string()};
}

TrafficRow traffic_from_json(const Json& j) {
  const Json* between = j.find("total_between_nodes_bytes");
  return {j.at("axis").as_string(),
          j.at("op").as_string(),
          j.at("phase").as_string(),
          j.at("calls").as_int(),
          j.at("payload_bytes").as_int(),
          j.at("wire_bytes").as_int(),
          j.at("total_calls").as_int(),
          j.at("total_payload_bytes").as_int(),
          j.at("total_wire_bytes").as_int(),
          j.at("wire_counted").as_bool(),
          between == nullptr ? 0 : between->as_int()};
}

MemoryRow memory_from_json(const Json& j) {
  return {j.at("rank").as_int(), j.at("category").as_string(), j.at("current_bytes").as_int(), j.at("peak_bytes").as_int()};
}

ExpertLoad load_from_json(const Json& j) {
  ExpertLoad l;
  l.step = j.at("step").as_int();
  l.layer = j.at("layer").as_int();
  l.routed = j.at("routed").as_int();
  for (const Json& n : j.at("choices").items()) l.choices.push_back(n.as_int());
  for (const Json& n : j.at("rows").items()) l.rows.push_back(n.as_int());
  for (const Json& n : j.at("rank_rows").items()) l.rank_rows.push_back(n.as_int());
  l.computed = j.at("computed").as_int();
  return l;
}

Json values_to_json(const ValueList& values) {
  Json object = Json::object();
  for (const auto& [key, value] : values) object.append_member(key, std::visit([](const auto& v) { return Json(v); }, value));
  return object;
}

Value value_from_json(const char* of, const std::string& key, const Json& j) {
  switch (j.kind()) {
    case Json::Kind::kBool: return j.as_bool();
    case Json::Kind::kInt: return j.as_int();
    case Json::Kind::kDouble: return j.as_double();
    case Json::Kind::kString: return j.as_string();
    default: throw InputError(fmt::format("{} \"{}\" must be a boolean, a number or a string", of, key));
  }
}

std::vector<double> doubles_from_json(const Json& j) {
  std::vector<double> values;
  for (const Json& item : j.items()) values.push_back(item.as_double());
  return values;
}

template <class Row>
std::vector<Row> rows_from_json(const Json& j, Row (*from_json)(const Json&)) {
  std::vector<Row> rows;
  for (const Json& item : j.items()) rows.push_back(from_json(item));
  return rows;
}

}  // namespace

Json Report::to_json() const {
  Json axes = Json::object();
  for (const auto& [axis, size] : mesh) axes.append_member(axis, Json(size));
  Json times = Json::object();
  for (const auto& [key, value] : timing) times.append_member(key, Json(value));
  return Json::object({{"program", program},
                       {"version", version},
                       {"mode", mode},
                       {"config", values_to_json(config)},
                       {"mesh", std::move(axes)},
                       {"loss", Json::array_of(loss)},
                       {"aux_loss", Json::array_of(aux_loss)},
                       {"baseline_loss", Json::array_of(baseline_loss)},
                       {"checks", to_array(checks, check_to_json)},
                       {"traffic", to_array(traffic, traffic_to_json)},
                       {"memory", to_array(memory, memory_to_json)},
                       {"experts", to_array(experts, load_to_json)},
                       {"values", values_to_json(values)},
                       {"timing", std::move(times)},
                       {"claims", to_array(claims, claim_to_json)}});
}

Report Report::from_json(const Json& json, const std::string& what) try {
  Report r;
  r.program = json.at("program").as_string();
  r.version = json.at("version").as_string();
  r.mode = json.at("mode").as_string();
  for (const auto& [key, value] : json.at("config").members())
    r.config.emplace_back(key, value_from_json("config", key, value));
  for (const auto& [axis, size] : json.at("mesh").members()) r.mesh.emplace_back(axis, size.as_int());
  r.loss = doubles_from_json(json.at("loss"));
  r.aux_loss = doubles_from_json(json.at("aux_loss"));
  r.baseline_loss = doubles_from_json(json.at("baseline_loss"));
  r.checks = rows_from_json(json.at("checks"), check_from_json);
  r.traffic = rows_from_json(json.at("traffic"), traffic_from_json);
  r.memory = rows_from_json(json.at("memory"), memory_from_json);
  r.experts = rows_from_json(json.at("experts"), load_from_json);
  for (const auto& [key, value] : json.at("values").members())
    r.values.emplace_back(key, value_from_json("values", key, value));
  for (const auto& [key, value] : json.at("timing").members()) r.timing[key] = value.as_double();
  r.claims = rows_from_json(json.at("claims"), claim_from_json);
  return r;
} catch (const InputError& e) {
  throw InputError(fmt::format("{} is not a report of this suite: {}", what, e.what()));
}

void Report::write_json(const std::string& path) const { write_file(path, to_json().dump(2) + "\n"); }

Report read_report(const std::string& path) { return Report::from_json(Json::parse(read_file(path), path), path); }

}  // namespace ref5d
