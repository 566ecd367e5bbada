// The secret that the processes of one run share, and no other program has: TINY_SECRET, which who
// starts them on several machines gives to all of them. Where they are on one machine it need not
// be set: rank 0 makes one up, and the others read it in a file that only their user can read.
#pragma once
#include <cstdint>
#include <string>

namespace tiny {

// A folder of this user alone: in XDG_RUNTIME_DIR where that is one, else /tmp/tiny-<user>.
// Throws Error where it is another's, or others may enter it.
std::string secret_folder();

// The secret of the run that meets at a port of this machine, which rank 0 holds while the object
// lives: no other run can be there, and what a run that was killed has left behind is replaced.
class OwnSecret {
 public:
  explicit OwnSecret(uint16_t port);
  ~OwnSecret();
  OwnSecret(const OwnSecret&) = delete;
  OwnSecret& operator=(const OwnSecret&) = delete;

  const std::string& text() const { return text_; }

 private:
  std::string text_, path_;  // path_: empty where there is no file
};

// For the other ranks; empty where there is none yet. `is_here`: rank 0 is on this machine; throws
// Error where it is not and TINY_SECRET is not set.
std::string find_secret(uint16_t port, bool is_here);

}  // namespace tiny
