// The order in which a program ends.
#pragma once

namespace tiny {

// When a program ends what was made last goes first. Of a library that is opened while it runs
// these are the library's own objects, some of which it makes when it is first used for something:
// they would go before static objects that were there earlier, and that may use the library in
// their destructors. To be called after each such use: the program's objects then go first.
void end_objects_before_libraries();

// From then on nothing may be asked of such libraries any more.
bool are_libraries_ending();

}  // namespace tiny
