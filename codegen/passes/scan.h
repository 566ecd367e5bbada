// Running sums (products, maxima) inside a kernel. A tensor's scan is written as a sum over what
// lies at or before each element, n^2 terms; here such a triangle becomes an Op::Prefix, whose
// value at an iteration combines those of all iterations before it:
//   sum_q where(q <= r, f(q), 0)  =  Prefix(f(r), r) + f(r)
// A Prefix over several ranges goes through them in order, the last one fastest. It is there
// between `find_scans` and `split_scans`, so that options may split and bind its ranges; what is
// left then is a Prefix over threads, which the renderer prints as exchanges between them, one over
// the lanes of a vector, which vectorize makes shuffles of, and sums.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Triangles whose result is stored along them; also of those at or after, q >= r, whose range then
// runs backwards. Few iterations stay as they are.
Node find_scans(Node sink);

// Each Prefix over several ranges as one for each of them:
//   Prefix(f, a, b) = Prefix(Reduce(f, b), a) + Prefix(f, b)
// and those over ranges other than threads and lanes as sums over what comes before.
Node split_scans(Node sink);

}  // namespace tiny
