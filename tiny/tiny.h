// The one header that users include.
#pragma once
#include "tiny/data.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/functional.h"
#include "tiny/progress.h"
#include "tiny/random.h"
#include "tiny/state.h"
#include "tiny/tensor.h"
