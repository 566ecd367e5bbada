// Models of ONNX files.
#pragma once
#include "tiny/onnx/module.h"
#include "tiny/tiny.h"
