// The same as library.h, for sources that are compiled with -O1: a precompiled header serves one
// level of optimization.
#pragma once
#include "extra/precompiled/library.h"
