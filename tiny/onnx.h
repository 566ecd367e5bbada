// Models of ONNX files.
#pragma once
#include "tiny/onnx/export/export.h"
#include "tiny/onnx/module.h"
#include "tiny/tiny.h"
