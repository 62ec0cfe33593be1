#include "06_expert_parallel/sabotage.h"

#include "common/app/sabotage.h"

namespace ref5d::expert_parallel {

const std::vector<Sabotage>& sabotages() {
  static const std::vector<Sabotage> kSabotages = {};
  return kSabotages;
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

}  // namespace ref5d::expert_parallel
