// What most tests include, compiled once for all of them: doctest, the tensors of users, and what
// the library's own sources share.
#pragma once
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "extra/precompiled/library.h"
#include "runtime/device/device.h"
#include "tiny/tiny.h"
