// What more than half of the library's sources include, compiled once for all of them. A source
// still includes what it uses: PCH=0, and the sanitizers' builds, compile without this.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "codegen/target/target.h"
#include "tiny/base/error.h"
#include "tiny/ir/node.h"
