// What most files include, compiled once for each build (Makefile): that takes a quarter off its time. Files still include all
// that they use; MODE=cuda and lint compile without this. (No guard: the compiler includes it, once.)
#include <algorithm>
#include <any>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
