#include "runtime/distributed/messages.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/device/disk_cache.h"
#include "runtime/distributed/meeting.h"
#include "runtime/distributed/shared_memory.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

using Clock = std::chrono::steady_clock;

// --- The others ----------------------------------------------------------------------------------

struct Peers {
  std::vector<std::unique_ptr<Link>> links;  // by rank
  SharedMemory memory;
  std::vector<bool> has_left;  // as programs do that have come to their end
};

// What a rank tells another one when they have met.
struct Home {
  char machine[64] = {};  // equal for those that can share memory
  uint32_t bytes = 0;     // of the address in that memory; 0: it shares none
  char address[444] = {};
};

// A machine, as one user's processes in one container see it.
std::string own_machine() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  for (const char* name : {"pid", "ipc", "mnt", "user"}) {
    std::error_code none;
    text += std::filesystem::read_symlink(cat("/proc/self/ns/", name), none).string();
  }
  return hex(sha256(cat(::geteuid(), ' ', text)));
}

Home own_home(const SharedMemory& memory) {
  Home out;
  const std::string wanted = env_text("RANK_TRANSPORT");
  check(wanted.empty() || wanted == "tls", "RANK_TRANSPORT=", wanted, ": expected tls or nothing");
  own_machine().copy(out.machine, sizeof out.machine);
  if (wanted.empty() && memory.address().size() <= sizeof out.address)
    out.bytes = static_cast<uint32_t>(memory.address().copy(out.address, sizeof out.address));
  return out;
}

Peers* meet();

Peers& peers() {
  static Peers* all = meet();
  return *all;
}

template <class F> void for_others(F what_to_do) {
  for (int i = 0; i < rank_count(); ++i)
    if (i != rank()) what_to_do(i);
}

Peers* meet() {
  auto* all = new Peers{first_mesh().take_links(), {}, {}};
  all->has_left.resize(all->links.size());
  const auto link = [&](int i) -> Link& { return *all->links[i]; };
  const Home own = own_home(all->memory);
  for_others([&](int i) { link(i).write(&own, sizeof own, "it has met the others"); });
  for_others([&](int i) {
    Home other;
    link(i).read(&other, sizeof other, "it has met the others");
    const bool is_near = std::equal(own.machine, std::end(own.machine), other.machine);
    if (is_near && own.bytes > 0 && other.bytes > 0 && other.bytes <= sizeof other.address)
      all->memory.connect(i, std::string(other.address, other.bytes));
  });
  // None leaves before all others have opened its memory.
  char ready = 1;
  for_others([&](int i) { link(i).write(&ready, 1, "it shares memory"); });
  for_others([&](int i) { link(i).read(&ready, 1, "it shares memory"); });
  std::atexit([] { for_others([](int i) { peers().links[i]->say_bye(); }); });
  return all;
}

Link& link_to(int rank) { return *peers().links.at(static_cast<size_t>(rank)); }

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
// message of this number over its link: else they would see no more than that it ends too, and name
// it.
constexpr uint64_t kLastWords = ~uint64_t{0};
constexpr size_t kMaxLastWords = 400;

// What follows such a header; empty where it does not come.
std::string words_behind(const MessageHeader& h, Link& link) {
  std::string text(std::min<uint64_t>(h.bytes, kMaxLastWords), 0);
  return link.read_now(text.data(), text.size()) == Heard::All ? text : "";
}

// What the rank said when it gave up, where it did: among the messages from it that have come and
// that nobody waits for any more.
std::string last_words_of(int peer) {
  Link& link = link_to(peer);
  MessageHeader h;
  while (link.read_now(&h, sizeof h) == Heard::All) {
    if (h.number == kLastWords) return words_behind(h, link);
    for (std::string part; h.bytes > 0; h.bytes -= part.size()) {
      part.resize(std::min<uint64_t>(h.bytes, 1 << 16));
      if (link.read_now(part.data(), part.size()) != Heard::All) return "";
    }
  }
  return "";
}

// To all but one that may be in the midst of a message over its link.
void tell_others(int peer, const std::string& why) {
  const std::string text = why.substr(0, kMaxLastWords);
  const MessageHeader h = header_of(kLastWords, text.size(), "last words");
  for_others([&](int i) {
    if (i != peer || peers().memory.reaches(i))
      link_to(i).write_now(std::string(reinterpret_cast<const char*>(&h), sizeof h) + text);
  });
}

// Another rank has said why it gives up.
struct GivenUp {
  std::string why;
};

[[noreturn]] void give_up(int peer, const std::string& why) {
  tell_others(peer, why);
  throw Error(cat("rank ", rank(), ": ", why));
}

// A part of a message to a peer or from it. `is_begun`: the peer may be in the midst of its own.
template <class F> void exchange_with(int peer, bool is_begun, F part) {
  try {
    part();
  } catch (const GivenUp& e) {
    give_up(peer, e.why);
  } catch (const LinkError& e) {
    const bool is_apart = peers().memory.reaches(peer);
    const std::string said = is_begun && !is_apart ? "" : last_words_of(peer);
    const size_t own = cat("rank ", rank(), ": ").size();
    give_up(peer, said.empty() ? std::string(e.what()).substr(own) : said);
  }
}

// --- Through shared memory -----------------------------------------------------------------------

// What a rank whose messages go through memory says over its link: last words, or nothing and ends.
void listen_to(int other, const std::string& what) {
  MessageHeader h;
  const Heard heard = link_to(other).read_now(&h, sizeof h);
  if (heard == Heard::Bye) peers().has_left[other] = true;
  if (heard == Heard::Ended)
    throw LinkError(cat("rank ", rank(), ": rank ", other, " has ended before ", what));
  if (heard != Heard::All) return;
  if (const std::string why = words_behind(h, link_to(other)); !why.empty()) throw GivenUp{why};
}

// Sleeps until the memory has something for this rank, and listens to all on this machine
// meanwhile: one that is killed may leave others waiting for one another.
SharedMemory::Idle wait_for(int peer, const char* verb, const std::string& what) {
  return [=, until = Clock::now() + rank_patience()](int socket) mutable {
    Peers& all = peers();
    std::vector<pollfd> polled{{socket, POLLIN, 0}};
    std::vector<int> others;
    for_others([&](int i) {
      if (!all.memory.reaches(i) || all.has_left[i]) return;
      polled.push_back({link_to(i).socket(), POLLIN, 0});
      others.push_back(i);
    });
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    const int64_t longest = socket >= 0 ? 1000 : 0;
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(left, 0, longest)));
    for (size_t i = 0; i < others.size(); ++i)
      if (polled[i + 1].revents) listen_to(others[i], what);
    if (polled[0].revents) until = Clock::now() + rank_patience();
    if (Clock::now() >= until)
      throw LinkError(cat("rank ", rank(), ": rank ", peer, " ", verb, " nothing for ",
                          rank_patience().count() / 1000, " s (COLLECTIVE_TIMEOUT), at ", what));
    return !all.has_left[peer];
  };
}

void write_to(int peer, const void* data, size_t bytes, const std::string& what) {
  SharedMemory& memory = peers().memory;
  if (!memory.reaches(peer)) return link_to(peer).write(data, bytes, what);
  if (!memory.send(peer, data, bytes, wait_for(peer, "takes", what)))
    throw LinkError(cat("rank ", rank(), ": rank ", peer, " has ended before ", what));
}

void read_from(int peer, void* data, size_t bytes, const std::string& what) {
  SharedMemory& memory = peers().memory;
  if (!memory.reaches(peer)) return link_to(peer).read(data, bytes, what);
  if (!memory.receive(peer, data, bytes, wait_for(peer, "sends", what)))
    throw LinkError(cat("rank ", rank(), ": rank ", peer, " has ended before ", what));
}

}  // namespace

void send_message(int to, const void* data, size_t bytes, const std::string& what) {
  exchange_with(to, /*is_begun=*/false, [&] {
    const MessageHeader h = header_of(link_to(to).sent++, bytes, what);
    write_to(to, &h, sizeof h, what);
    write_to(to, data, bytes, what);
  });
}

void receive_message(int from, void* data, size_t bytes, const std::string& what) {
  MessageHeader wanted, got;
  exchange_with(from, /*is_begun=*/true, [&] {
    wanted = header_of(link_to(from).received++, bytes, what);
    read_from(from, &got, sizeof got, what);
  });
  if (got.number == kLastWords)
    if (const std::string why = words_behind(got, link_to(from)); !why.empty()) give_up(from, why);
  got.what[kWhat - 1] = 0;
  if (got.number != wanted.number || got.bytes != bytes ||
      std::strcmp(got.what, wanted.what) != 0) {
    const std::string why =
        cat("rank ", rank(), " expects message ", wanted.number, ", ", wanted.what, " (", bytes,
            " bytes), and rank ", from, " sends ", got.number, ", ", got.what, " (", got.bytes,
            " bytes): the ranks do not run the same program with the same values");
    tell_others(/*peer=*/-1, why);
    throw Error(why);
  }
  exchange_with(from, /*is_begun=*/true, [&] { read_from(from, data, bytes, what); });
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

std::vector<std::unique_ptr<Link>> connect_ranks() {
  std::vector<int> all(static_cast<size_t>(rank_count()));
  std::iota(all.begin(), all.end(), 0);
  auto listener = rank() == 0 ? std::make_unique<Listener>(Address{master_host(), 0}) : nullptr;
  const std::string port = listener ? std::to_string(listener->port()) : "";
  const std::string at = text_of_first(all, port, "the port of a meeting");
  return Mesh({master_host(), static_cast<uint16_t>(std::stoi(at))}, std::move(listener))
      .take_links();
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
