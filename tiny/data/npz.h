// Arrays of NumPy: files .npy of one and .npz of several (numpy.lib.format, versions 1 to 3; ZIP as
// of PKWARE's APPNOTE.TXT, entries stored or deflated).
#pragma once
#include <map>
#include <string>

#include "tiny/tensor/tensor.h"

namespace tiny {

// The arrays by name, "x" for the entry x.npy, on a device ("": the default one). Throws Error for
// a file that is damaged, elements that no dtype has (strings, objects, big-endian numbers, complex
// ones), and deflated entries in a build without zlib.
std::map<std::string, Tensor> load_npz(const std::string& path, const std::string& device = "");

// The array of a file .npy. Throws Error as above.
Tensor load_npy(const std::string& path, const std::string& device = "");

}  // namespace tiny
