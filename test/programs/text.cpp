// Programs as C++ and as lines of text.
#include <algorithm>
#include <cctype>
#include <sstream>

#include "test/programs/program.h"
#include "tiny/base/error.h"

namespace tiny::programs {

extern const char* const kHelpers;

namespace {

std::string list(const Shape& values) {
  std::string out = "Shape{";
  for (size_t i = 0; i < values.size(); ++i) out += cat(i ? ", " : "", values[i]);
  return out + "}";
}

std::string dtype_text(DType t) {
  std::string name = t.name();
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  return t.is_bool() ? "kBool" : "k" + name;
}

std::string exact(double v) {
  std::ostringstream out;
  out.precision(17);
  out << v;
  const std::string text = out.str();
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

// What a name of an expression stands for; "" for names that stand for themselves.
std::string meaning(const std::string& name, const Step& s) {
  constexpr std::string_view kInputs = "xyz";
  if (name.size() == 1 && kInputs.find(name[0]) != kInputs.npos) {
    const size_t i = kInputs.find(name[0]);
    return i < s.in.size() ? cat("v", s.in[i]) : "Tensor()";
  }
  if (name == "a") return list(s.a);
  if (name == "b") return list(s.b);
  if (name == "i") return cat(s.i);
  if (name == "j") return cat(s.j);
  if (name == "k") return cat(s.k);
  if (name == "r") return exact(s.r);
  if (name == "t") return dtype_text(s.t);
  if (name == "seed") return cat(s.seed);
  return "";
}

std::string expression(const Step& s) {
  const std::string_view text = row_of(s).text;
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (!is_word(text[at])) {
      out += text[at++];
      continue;
    }
    const size_t begin = at;
    while (at < text.size() && is_word(text[at])) ++at;
    const std::string name(text.substr(begin, at - begin));
    const bool is_member = begin > 0 && text[begin - 1] == '.';
    const std::string value =
        is_member || std::isdigit(static_cast<unsigned char>(name[0])) ? "" : meaning(name, s);
    out += value.empty() ? name : value;
  }
  return out;
}

bool names_several(const std::string& setting) {
  const size_t at = setting.find("DEVICE=");
  return at != setting.npos &&
         setting.substr(at, setting.find(' ', at) - at).find(',') != setting.npos;
}

// ".shard(...)" where the setting names several devices.
std::string cut(const Step& s, const std::string& setting) {
  if (!names_several(setting)) return "";
  const size_t at = setting.find("DEVICE=");
  std::string names;
  for (char c : setting.substr(at + 7, setting.find(' ', at) - at - 7))
    names += c == ',' ? std::string("\", \"") : std::string(1, c);
  const size_t devices = static_cast<size_t>(std::count(setting.begin() + static_cast<int64_t>(at),
                                                        setting.end(), ',')) +
                         1;
  const int axis = axis_of_shard(s, devices);
  return cat(".shard({\"", names, "\"}", axis < 0 ? "" : cat(", ", axis), ")");
}

std::string line_of(const Program& program, size_t n, const std::string& setting) {
  const Step& s = program.steps[n];
  if (s.row == row_named("realize")) {
    std::string all;
    for (int i : s.in) all += cat(all.empty() ? "&v" : ", &v", i);
    return "  { std::vector<Tensor*> p{" + all + "}; Tensor::realize(p); }\n";
  }
  const bool is_leaf = has(row_of(s), 'l');
  std::string text =
      cat("  Tensor v", n, " = ", expression(s), is_leaf ? cut(s, setting) : "", ";");
  if (wants_gradient(program, s)) text += cat(" v", n, ".requires_grad_();");
  return text + "\n";
}

std::string results_of(const Program& program, const std::string& setting) {
  std::string out = "  std::vector<Tensor> results{";
  for (size_t i = 0; i < program.outputs.size(); ++i)
    out += cat(i ? ", v" : "v", program.outputs[i]);
  out += "};\n";
  if (!program.gradient) return out;
  out +=
      "  Tensor loss;\n  double phase = 1;\n  for (Tensor v : results) {\n"
      "    if (!v.dtype().is_float() || !v.requires_grad()) continue;\n"
      "    Tensor weights = wave(v, phase++);\n" +
      std::string(program.in_memory && !names_several(setting)
                      ? "    weights = weights.contiguous().realize();\n"
                      : "") +
      "    const Tensor term = (v * weights).sum().to(kF64);\n"
      "    loss = loss.defined() ? loss + term : term;\n  }\n"
      "  if (loss.defined())\n    for (Tensor g : Tensor::gradient(loss, {";
  bool first = true;
  for (size_t n = 0; n < program.steps.size(); ++n)
    if (wants_gradient(program, program.steps[n])) {
      out += cat(first ? "v" : ", v", n);
      first = false;
    }
  return out + "})) results.push_back(g);\n";
}

constexpr const char* kRealize = R"(  std::vector<Tensor*> first, second;
  for (size_t i = 0; i < results.size(); ++i) {
    if (grouping == 2) results[i].realize();
    (grouping == 0 || i >= outputs ? first : second).push_back(&results[i]);
  }
  Tensor::realize(first);
  Tensor::realize(second);
)";

constexpr const char* kMain = R"(
static std::vector<std::vector<double>> values() {
  std::vector<std::vector<double>> out;
  for (Tensor& t : run()) out.push_back(t.to("CPU").to(kF64).to_vector<double>());
  return out;
}
int main() {
  const auto got = values();
  const EnvOverride a("FUSE", "0"), b("OPT", "0"), c("DEVICE", "CPU");
  const auto plain = values();
  for (size_t n = 0; n < got.size(); ++n) {
    double worst = 0;
    for (size_t i = 0; i < got[n].size(); ++i) {
      const double off = std::abs(got[n][i] - plain[n][i]);
      if (!(off <= worst) && !(std::isnan(got[n][i]) && std::isnan(plain[n][i]))) worst = off;
    }
    std::printf("result %zu: worst difference from FUSE=0 OPT=0 %g\n", n, worst);
  }
}
)";

}  // namespace

std::string to_cpp(const Program& program, const std::string& setting) {
  std::string out = cat("// Random program ", program.seed, ", run it with ",
                        setting.empty() ? "no setting" : setting, "\n");
  out +=
      "#include <cmath>\n#include <cstdio>\n\n#include \"tiny/tiny.h\"\nusing namespace tiny;\n\n";
  out += std::string("static ") + kHelpers + "\n\nstatic std::vector<Tensor> run() {\n";
  for (size_t n = 0; n < program.steps.size(); ++n) out += line_of(program, n, setting);
  out += results_of(program, setting);
  out += cat("  const size_t outputs = ", program.outputs.size(),
             ";\n  const int grouping = ", program.grouping, ";\n") +
         kRealize;
  return out + "  return results;\n}\n" + kMain;
}

// --- One line ------------------------------------------------------------------------------------

namespace {

void put(std::ostream& out, const auto& values) {
  out << values.size() << ' ';
  for (const auto v : values) out << v << ' ';
}

template <class List> void take(std::istream& in, List& values) {
  size_t count = 0;
  check(static_cast<bool>(in >> count) && count < 100000, "the line is no program");
  values.resize(count);
  for (auto& v : values) in >> v;
}

}  // namespace

std::string to_line(const Program& program) {
  std::ostringstream out;
  out.precision(17);
  out << program.seed << ' ' << program.gradient << ' ' << program.grouping << ' '
      << program.in_memory << ' ';
  put(out, program.outputs);
  out << program.steps.size() << ' ';
  for (const Step& s : program.steps) {
    out << s.row << ' ' << s.i << ' ' << s.j << ' ' << s.k << ' ' << s.r << ' '
        << static_cast<int>(s.t.scalar) << ' ' << s.seed << ' ';
    put(out, s.in);
    put(out, s.a);
    put(out, s.b);
  }
  return out.str();
}

Program from_line(const std::string& line) {
  std::istringstream in(line);
  Program program;
  in >> program.seed >> program.gradient >> program.grouping >> program.in_memory;
  take(in, program.outputs);
  size_t count = 0;
  in >> count;
  check(static_cast<bool>(in) && count < 1000, "the line is no program");
  for (size_t n = 0; n < count; ++n) {
    Step s;
    int scalar = 0;
    in >> s.row >> s.i >> s.j >> s.k >> s.r >> scalar >> s.seed;
    s.t = DType(static_cast<Scalar>(scalar));
    take(in, s.in);
    take(in, s.a);
    take(in, s.b);
    program.steps.push_back(std::move(s));
  }
  check(static_cast<bool>(in), "the line is no program");
  return program;
}

}  // namespace tiny::programs
