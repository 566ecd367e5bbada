#include "tiny/onnx/format/wire.h"

#include <bit>
#include <cstring>

namespace tiny::onnx {

namespace {

static_assert(std::endian::native == std::endian::little, "fixed numbers are little-endian");

constexpr int kMaxDepth = 64;  // a graph inside of a graph takes three
// What is made of a message takes some hundred bytes; in a file it takes two at least, in one that
// a program wrote many more on average.
constexpr int64_t kFewMessages = 16, kAverageBytes = 4;  // at least
constexpr int kVarintBytes = 10;

const char* name_of(WireType type) {
  switch (type) {
    case WireType::Varint: return "a varint";
    case WireType::Fixed64: return "8 bytes";
    case WireType::Fixed32: return "4 bytes";
    default: return "bytes with a length";
  }
}

}  // namespace

// --- WireReader ----------------------------------------------------------------------------------

WireReader::WireReader(WireFile& file, std::span<const std::byte> bytes, const char* name,
                       int depth)
    : file_(&file), rest_(bytes), name_(name), depth_(depth) {
  if (depth > kMaxDepth) fail("messages are nested more than ", kMaxDepth, " deep");
  const int64_t size = std::ssize(file.bytes), most = kFewMessages + size / kAverageBytes;
  if (++file.messages > most)
    fail("the file of ", size, " bytes has more than ", most, " messages");
}

uint64_t WireReader::varint() {
  uint64_t value = 0;
  for (int i = 0; i < kVarintBytes; ++i) {
    if (rest_.empty()) fail("the message ends in a varint");
    const auto byte = std::to_integer<uint64_t>(rest_[0]);
    rest_ = rest_.subspan(1);
    value |= (byte & 127) << (7 * i);  // of the tenth byte one bit counts
    if (byte < 128) return value;
  }
  fail("a varint has more than ", kVarintBytes, " bytes");
}

std::span<const std::byte> WireReader::take(uint64_t count) {
  if (count > rest_.size())
    fail("a field has ", count, " bytes, the message only ", rest_.size(), " more");
  const auto bytes = rest_.first(static_cast<size_t>(count));
  rest_ = rest_.subspan(static_cast<size_t>(count));
  return bytes;
}

template <class T> uint64_t WireReader::fixed() {
  T value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

bool WireReader::next(WireField& field) {
  if (rest_.empty()) return false;
  const uint64_t key = varint();
  const uint64_t number = key >> 3;
  if (number == 0 || number > (uint64_t{1} << 29) - 1) fail("a field has the number ", number);
  field = {this, static_cast<uint32_t>(number), static_cast<WireType>(key & 7), 0, {}};
  switch (key & 7) {
    case 0: field.value = varint(); break;
    case 1: field.value = fixed<uint64_t>(); break;
    case 2: field.bytes = take(varint()); break;
    case 5: field.value = fixed<uint32_t>(); break;
    default: fail("field ", number, " is of the wire type ", key & 7, ", expected 0, 1, 2 or 5");
  }
  return true;
}

// --- WireField -----------------------------------------------------------------------------------

void WireField::require(WireType wanted) const {
  if (type != wanted)
    message->fail("field ", number, " holds ", name_of(type), ", expected ", name_of(wanted));
}

int64_t WireField::integer() const {
  require(WireType::Varint);
  return static_cast<int64_t>(value);
}

float WireField::real() const {
  require(WireType::Fixed32);
  return std::bit_cast<float>(static_cast<uint32_t>(value));
}

std::span<const std::byte> WireField::data() const {
  require(WireType::Bytes);
  return bytes;
}

std::string WireField::text() const {
  require(WireType::Bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

WireReader WireField::inner(const char* name) const {
  require(WireType::Bytes);
  return message->inner(bytes, name);
}

void WireField::append_to(std::vector<int64_t>& out) const {
  if (type == WireType::Varint) {
    out.push_back(static_cast<int64_t>(value));
    return;
  }
  require(WireType::Bytes);
  WireReader list = message->inner(bytes, "a list of integers");
  while (!list.rest_.empty()) out.push_back(static_cast<int64_t>(list.varint()));
}

template <class T> void WireField::append_fixed(WireType single, std::vector<T>& out) const {
  if (type == single) {
    T one;
    std::memcpy(&one, &value, sizeof one);
    out.push_back(one);
    return;
  }
  require(WireType::Bytes);
  if (bytes.size() % sizeof(T) != 0)
    message->fail("field ", number, " has ", bytes.size(), " bytes of packed numbers of ",
                  sizeof(T), " bytes");
  const size_t before = out.size();
  out.resize(before + bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(out.data() + before, bytes.data(), bytes.size());
}

void WireField::append_to(std::vector<float>& out) const { append_fixed(WireType::Fixed32, out); }

void WireField::append_to(std::vector<double>& out) const { append_fixed(WireType::Fixed64, out); }

}  // namespace tiny::onnx
