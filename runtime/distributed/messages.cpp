#include "runtime/distributed/messages.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/distributed/meeting.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

Mesh& mesh() {
  static Mesh* all = new Mesh(first_mesh());
  return *all;
}

// --- Messages ------------------------------------------------------------------------------------

constexpr size_t kWhat = 112;

struct MessageHeader {
  uint64_t number = 0, bytes = 0;
  char what[kWhat] = {};
};

MessageHeader header_of(uint64_t number, size_t bytes, const std::string& what) {
  MessageHeader h{number, bytes, {}};
  std::copy_n(what.data(), std::min(what.size(), kWhat - 1), h.what);
  return h;
}

// --- Last words ----------------------------------------------------------------------------------

// A rank that gives up because another one has ended, or is silent, tells all others which, as a
// message of this number: else they would see no more than that it ends too, and name it.
constexpr uint64_t kLastWords = ~uint64_t{0};
constexpr size_t kMaxLastWords = 400;

// What the rank said when it gave up, where it did: among the messages from it that have come and
// that nobody waits for any more.
std::string last_words_of(int peer) {
  Link& link = mesh().link(peer);
  MessageHeader h;
  while (link.read_now(&h, sizeof h)) {
    if (h.number == kLastWords && h.bytes > kMaxLastWords) return "";
    std::string text(std::min<uint64_t>(h.bytes, kMaxLastWords), 0);
    for (uint64_t left = h.bytes; left > 0; left -= text.size()) {
      text.resize(std::min<uint64_t>(left, text.size()));
      if (!link.read_now(text.data(), text.size())) return "";
    }
    if (h.number == kLastWords) return text;
  }
  return "";
}

[[noreturn]] void give_up(int peer, const std::string& why) {
  const std::string text = why.substr(0, kMaxLastWords);
  const MessageHeader h = header_of(kLastWords, text.size(), "last words");
  for (int i = 0; i < rank_count(); ++i)
    if (i != rank() && i != peer)
      mesh().link(i).write_now(std::string(reinterpret_cast<const char*>(&h), sizeof h) + text);
  throw Error(cat("rank ", rank(), ": ", why));
}

// A part of a message to a peer or from it. `is_begun`: the peer may be in the midst of its own.
template <class F> void exchange_with(int peer, bool is_begun, F part) {
  try {
    part(mesh().link(peer));
  } catch (const LinkError& e) {
    const std::string said = is_begun ? "" : last_words_of(peer);
    const size_t own = cat("rank ", rank(), ": ").size();
    give_up(peer, said.empty() ? std::string(e.what()).substr(own) : said);
  }
}

}  // namespace

void send_message(int to, const void* data, size_t bytes, const std::string& what) {
  exchange_with(to, /*is_begun=*/false, [&](Link& link) {
    const MessageHeader h = header_of(link.sent++, bytes, what);
    link.write(&h, sizeof h, what);
    link.write(data, bytes, what);
  });
}

void receive_message(int from, void* data, size_t bytes, const std::string& what) {
  MessageHeader wanted, got;
  exchange_with(from, /*is_begun=*/true, [&](Link& link) {
    wanted = header_of(link.received++, bytes, what);
    link.read(&got, sizeof got, what);
  });
  if (got.number == kLastWords) {
    std::string text(std::min<uint64_t>(got.bytes, kMaxLastWords), 0);
    if (mesh().link(from).read_now(text.data(), text.size())) give_up(from, text);
  }
  got.what[kWhat - 1] = 0;
  check(
      got.number == wanted.number && got.bytes == bytes && std::strcmp(got.what, wanted.what) == 0,
      "rank ", rank(), " expects message ", wanted.number, ", ", wanted.what, " (", bytes,
      " bytes), and rank ", from, " sends ", got.number, ", ", got.what, " (", got.bytes,
      " bytes): the ranks do not run the same program with the same values");
  exchange_with(from, /*is_begun=*/true, [&](Link& link) { link.read(data, bytes, what); });
}

namespace {

void send_text(int to, const std::string& text, const std::string& what) {
  const uint64_t size = text.size();
  send_message(to, &size, sizeof size, cat("the length of ", what));
  send_message(to, text.data(), size, what);
}

std::string receive_text(int from, const std::string& what) {
  constexpr uint64_t kMax = 1 << 28;  // bytes; a plan has thousands
  uint64_t size = 0;
  receive_message(from, &size, sizeof size, cat("the length of ", what));
  check(size <= kMax, "rank ", rank(), ": rank ", from, " announces ", size, " bytes of ", what,
        ", of which there are at most ", kMax);
  std::string text(size, 0);
  receive_message(from, text.data(), size, what);
  return text;
}

}  // namespace

std::string text_of_first(std::span<const int> ranks, std::string text, const std::string& what) {
  for (int i : ranks.subspan(1)) {
    if (rank() == ranks[0]) send_text(i, text, what);
    if (rank() == i) text = receive_text(ranks[0], what);
  }
  return text;
}

std::vector<int> connect_ranks() {
  std::vector<int> all(static_cast<size_t>(rank_count()));
  std::iota(all.begin(), all.end(), 0);
  auto listener = rank() == 0 ? std::make_unique<Listener>(Address{master_host(), 0}) : nullptr;
  const std::string port = listener ? std::to_string(listener->port()) : "";
  const std::string at = text_of_first(all, port, "the port of a meeting");
  Mesh fresh({master_host(), static_cast<uint16_t>(std::stoi(at))}, std::move(listener));
  std::vector<int> out;
  for (int i : all) out.push_back(i == rank() ? -1 : std::move(fresh.link(i)).take_socket());
  return out;
}

namespace {

// Where two texts differ first, by lines.
std::string first_difference(const std::string& own, const std::string& other, int other_rank) {
  TextReader a(own), b(other);
  for (int number = 1;; ++number) {
    std::string x, y;
    const bool more_x = static_cast<bool>(std::getline(a, x));
    const bool more_y = static_cast<bool>(std::getline(b, y));
    if (!more_x && !more_y) return "";
    if (x == y && more_x == more_y) continue;
    return cat("the ranks plan different work: step ", number, " is ", more_x ? x : "missing",
               " on rank ", rank(), " and ", more_y ? y : "missing", " on rank ", other_rank);
  }
}

}  // namespace

// Rank 0 tells all others, and hears from each whether it agrees.
void agree_on(const std::string& text) {
  std::string wrong;
  constexpr size_t kReply = 256;
  for (int i = 1; i < rank_count(); ++i) {
    if (rank() != 0 && rank() != i) continue;
    std::vector<char> reply(kReply);
    if (rank() == 0) {
      send_text(i, text, "a plan");
      receive_message(i, reply.data(), kReply, "an answer to a plan");
      if (reply[0] && wrong.empty()) wrong = reply.data();
      continue;
    }
    const std::string other = receive_text(0, "a plan");
    if (other != text) wrong = first_difference(text, other, 0);
    std::copy_n(wrong.data(), std::min(wrong.size(), kReply - 1), reply.data());
    send_message(0, reply.data(), kReply, "an answer to a plan");
  }
  check(wrong.empty(), wrong);
}

}  // namespace tiny
