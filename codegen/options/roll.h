// Reductions along one loop of which one needs another: in one pass instead of one for each.
//
// Let r be a reduction along a range and R = sum g(x, r) another one that uses it. Where
// g(x, r') = g(x, r) c(r, r') for a correction c that does not depend on x, R can go along while r
// is not known yet: in each iteration what is summed so far is multiplied by c(r before, r now),
// and the term is computed with the r of now ("online" softmax: Milakov and Gimelshein, arXiv
// 1805.02867; as a rule on any graph: Neptune, arXiv 2510.08726). Factors of g that depend on r
// alone are pulled out of the sum first: those need no correction.
//
// Where r is the largest or smallest x, its place goes along too: the max of (x = r ? f : 0) for a
// positive f that falls along the range is the f of the first such x, found anew where r changes.
//
// In the kernel graph: r = Reduce(max, t, range), before = Prefix(max, t, range), which is what the
// accumulator of r holds; now = max(before, t); and R = Reduce(add, Roll(g(x, now), c), range).
#pragma once
#include <string>

#include "tiny/ir/node.h"

namespace tiny {

// The kernel with all reductions that close the range `axis` in one loop along it. `why`: why that
// cannot be, where the result is nullptr. Rounding a term (a Cast between floats) after the
// correction instead of before is taken as the same.
Node roll(Node sink, int axis, std::string& why);

}  // namespace tiny
