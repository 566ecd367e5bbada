// The one header that users include.
#pragma once
#include "tiny/data.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/functional.h"
#include "tiny/jit.h"
#include "tiny/nn.h"
#include "tiny/optim.h"
#include "tiny/progress.h"
#include "tiny/random.h"
#include "tiny/state.h"
#include "tiny/state_dict.h"
#include "tiny/tensor.h"
