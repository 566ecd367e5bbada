// What the conformance program's sources include, compiled once for all of them: above all the
// JSON library.
#pragma once
#include <iostream>
#include <nlohmann/json.hpp>

#include "extra/precompiled/library.h"
#include "tiny/tiny.h"
