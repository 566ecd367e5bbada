// The entry point of the unit tests; the other files of test/ only hold test cases.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
