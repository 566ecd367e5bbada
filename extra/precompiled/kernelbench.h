// What each of KernelBench's problems includes.
#pragma once
#include "extra/kernelbench/problem.h"
