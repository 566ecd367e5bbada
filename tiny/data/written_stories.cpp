// Stories made of sentences with gaps, for models of language.
#include <array>
#include <string_view>

#include "tiny/base/error.h"
#include "tiny/base/splitmix.h"
#include "tiny/data/datasets.h"

namespace tiny {

namespace {

using Words = std::array<std::string_view, 6>;

// What a topic's stories are told with. Verbs take the thing as their object.
struct Topic {
  Words people, places, things, verbs, ends;
};

constexpr std::array<Topic, kStoryTopics> kTopics{{
    {{"keeper", "fisher", "sailor", "pilot", "diver", "captain"},
     {"harbour", "lighthouse", "beach", "pier", "island", "boat"},
     {"lamp", "net", "anchor", "rope", "sail", "oar"},
     {"lifts", "mends", "ties", "carries", "drops", "paints"},
     {"the tide comes in", "a gull cries", "the waves grow", "fog hides the water",
      "the wind turns", "the boats come home"}},
    {{"cook", "baker", "guest", "waiter", "grocer", "brewer"},
     {"kitchen", "pantry", "bakery", "cellar", "market", "garden"},
     {"soup", "bread", "pie", "stew", "cake", "cheese"},
     {"tastes", "cuts", "warms", "salts", "serves", "covers"},
     {"the kettle sings", "the oven cools", "dinner is ready", "the plates are washed",
      "the fire burns low", "the guests are glad"}},
    {{"guide", "shepherd", "hunter", "climber", "ranger", "miller"},
     {"valley", "summit", "forest", "hut", "meadow", "bridge"},
     {"map", "lantern", "pack", "axe", "coat", "horn"},
     {"finds", "hides", "holds", "lends", "loses", "wants"},
     {"snow begins to fall", "the path grows steep", "an eagle circles", "the stream freezes",
      "the sun sinks behind the rocks", "the sheep come down"}},
    {{"smith", "weaver", "tailor", "carver", "printer", "mason"},
     {"workshop", "mill", "forge", "attic", "yard", "shed"},
     {"hammer", "wheel", "loom", "needle", "saw", "chisel"},
     {"sharpens", "cleans", "oils", "breaks", "borrows", "measures"},
     {"sparks fly", "dust fills the air", "the clock strikes", "the work is done",
      "the door is locked", "a customer knocks"}},
}};
constexpr Words kTimes{"In the morning", "At noon",   "In the evening",
                       "At night",       "On Sunday", "After the storm"};
constexpr Words kMoods{"old", "young", "tired", "cheerful", "quiet", "proud"};
constexpr Words kColours{"red", "heavy", "small", "broken", "new", "golden"};
constexpr Words kManners{"slowly", "with care", "in silence", "at once", "twice", "with a smile"};

class Teller {
 public:
  explicit Teller(uint64_t seed) : random_(seed) {}

  Story story() {
    const int topic = random_.below(kStoryTopics);
    const Topic& t = kTopics[topic];
    const std::string_view who = one_of(t.people), what = one_of(t.things);
    const bool is_she = random_.below(2) == 1;
    const std::string_view one = is_she ? "She" : "He", her = is_she ? "her" : "his";
    std::string text = cat(one_of(kTimes), " the ", one_of(kMoods), ' ', who, " comes to the ",
                           one_of(t.places), " with ", her, ' ', one_of(kColours), ' ', what, ". ");
    const int middle = 1 + random_.below(3);
    for (int i = 0; i < middle; ++i) text += sentence(t, one, who, what);
    return {
        text + cat("Then ", one_of(t.ends), ", and the ", who, " puts ", her, ' ', what, " away."),
        topic};
  }

 private:
  std::string_view one_of(const Words& words) {
    return words[random_.below(static_cast<int>(words.size()))];
  }

  std::string sentence(const Topic& t, std::string_view one, std::string_view who,
                       std::string_view what) {
    switch (random_.below(3)) {
      case 0: return cat(one, ' ', one_of(t.verbs), " the ", what, ' ', one_of(kManners), ". ");
      case 1:
        return cat("The ", who, ' ', one_of(t.verbs), " the ", what, ", and ", one_of(t.ends),
                   ". ");
      default:
        return cat(one, ' ', one_of(t.verbs), " the ", what, " and ", one_of(t.verbs), " it ",
                   one_of(kManners), ". ");
    }
  }

  SplitMix64 random_;
};

}  // namespace

std::vector<Story> write_stories(int count, uint64_t seed) {
  check(count >= 0, "write_stories: ", count, " stories");
  std::vector<Story> out;
  SplitMix64 seeds(seed);
  for (int i = 0; i < count; ++i) out.push_back(Teller(seeds.bits()).story());
  return out;
}

}  // namespace tiny
