#include "runtime/jit/forms.h"

#include <algorithm>

#include "runtime/device/buffer.h"
#include "tiny/ir/build.h"

namespace tiny {

Node below_views(Node n) {
  while (n->realized || n->op == Op::Reshape || is_for_gradients(n->op))
    n = n->realized ? n->realized.load() : n->src(0);
  return n;
}

std::vector<Tensor> split(const std::vector<Tensor>& tensors, std::vector<Form>& forms) {
  std::vector<Tensor> out;
  forms.clear();
  for (const Tensor& t : tensors) {
    Form form;
    if (t.defined() && !t.requires_grad() && !device_members(t.node()->device).empty()) {
      Node n = t.node()->realized ? t.node()->realized.load() : t.node();
      Tensor whole = t;
      if (n->op != Op::Multi || !std::all_of(n->srcs().begin(), n->srcs().end(), whole_buffer)) {
        n = whole.realize().node();
        if (n->realized) n = n->realized;
      }
      if (n->op != Op::Multi) n = Tensor(build::contiguous(n)).realize().node();
      form = {static_cast<int>(n->ints()[0]), static_cast<int>(n->ints()[1])};
      for (Node piece : n->srcs()) out.emplace_back(piece);
    } else {
      out.push_back(t);
    }
    forms.push_back(form);
  }
  return out;
}

std::vector<Tensor> joined(const std::vector<Tensor>& pieces, const std::vector<Form>& forms) {
  std::vector<Tensor> out;
  size_t at = 0;
  for (const Form& f : forms) {
    if (!f.group) {
      out.push_back(pieces[at++]);
      continue;
    }
    std::vector<Node> nodes;
    for (size_t i = 0; i < device_members(f.group).size(); ++i)
      nodes.push_back(pieces[at++].node());
    out.emplace_back(build::multi(nodes, f.group, f.axis));
  }
  return out;
}

}  // namespace tiny
