# Everything is found by wildcard: a new source file needs no line here. `make help` lists targets.
#   CONFIG=release|asan|tsan   where and how to build: build/CONFIG
#   NO_SETUP=1                 installs nothing; builds what the packages that are there allow
#   CI=true                    warnings are errors
#   PCH=0                      compiles without precompiled headers, as the sanitizers' builds do
#   UNITY=1                    compiles each source of the library alone, not with its neighbours
#   Z3=0                       opens no z3: what intervals do not settle stays unproved
#   PREFIX, DESTDIR, LIBDIR, INCLUDEDIR   of make install, as usual: docs/install.md
#   CXX, CPPFLAGS, CXXFLAGS, LDFLAGS, LDLIBS as usual: CPPFLAGS=-Ifolder finds headers elsewhere
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
# A make inside a make shares its parent's jobs.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

CONFIG ?= release
comma := ,
BUILD := build/$(CONFIG)
CXX ?= g++
export CXX CPPFLAGS

# --- Sources and what is made of them ------------------------------------------------------------

FOLDERS := $(shell find tiny codegen runtime devices -type d | LC_ALL=C sort)
LIBRARY_SOURCES := $(wildcard $(FOLDERS:%=%/*.cpp))
TEST_FOLDERS := unit ops golden error fuzz programs train lint
TEST_SOURCES := $(wildcard test/*.cpp $(TEST_FOLDERS:%=test/%/*.cpp))
FUZZ_SOURCES := test/reference.cpp $(filter-out %/test_programs.cpp,$(wildcard \
  test/driver/*.cpp test/programs/*.cpp))
CONFORMANCE_SOURCES := $(wildcard test/conformance/*.cpp)
EXAMPLE_SOURCES := $(wildcard examples/*.cpp)
TOOL_SOURCES := $(wildcard extra/*.cpp)
BENCH_SOURCES := $(wildcard extra/bench/*.cpp)
HEADERS := $(wildcard $(addsuffix /*.h,$(FOLDERS) examples examples/* test test/* extra extra/*))
FORMATTED := $(HEADERS) $(wildcard $(addsuffix /*.cpp,$(FOLDERS) examples test test/* extra/*))

# --- Packages that may be missing with NO_SETUP=1 ------------------------------------------------

ifdef NO_SETUP
# Not what `export` gives: make before 4.4 exports to recipes alone.
MISSING := $(shell CXX='$(CXX)' CPPFLAGS='$(CPPFLAGS)' extra/setup.sh --check)
# The files of a list that include none of the headers (a grep pattern).
without = $(if $(1),$(shell grep -L '^ *\# *include *[<"]\($(2)\)[>"]' $(1) /dev/null | \
  grep -v /dev/null))
ifneq ($(filter libz3-4,$(MISSING)),)
$(info NO_SETUP: no z3: kernels that intervals do not settle stay unproved, make test needs it)
endif
ifneq ($(filter libcxxopts-dev,$(MISSING)),)
$(info NO_SETUP: no cxxopts: the examples that need it are left out)
EXAMPLE_SOURCES := $(call without,$(EXAMPLE_SOURCES),cxxopts\.hpp)
TOOL_SOURCES := $(call without,$(TOOL_SOURCES),cxxopts\.hpp)
BENCH_SOURCES := $(call without,$(BENCH_SOURCES),cxxopts\.hpp)
endif
ifneq ($(filter zlib1g-dev,$(MISSING)),)
$(info NO_SETUP: no zlib: files compressed with gzip cannot be read)
TEST_SOURCES := $(call without,$(TEST_SOURCES),zlib\.h)
endif
ifneq ($(filter nlohmann-json3-dev,$(MISSING)),)
$(info NO_SETUP: no nlohmann/json.hpp: safetensors files cannot be read, their tests fail)
endif
TOKENIZER_PACKAGES := libpcre2-dev libutf8proc-dev nlohmann-json3-dev
ifneq ($(filter $(TOKENIZER_PACKAGES),$(MISSING)),)
$(info NO_SETUP: no $(filter $(TOKENIZER_PACKAGES),$(MISSING)): most tokenizers cannot be used)
TEST_SOURCES := $(filter-out test/unit/test_tokenizer% test/unit/test_chat_page.cpp,$(TEST_SOURCES))
endif
ifneq ($(filter nlohmann-json3-dev libcxxopts-dev,$(MISSING)),)
$(info NO_SETUP: no conformance program: it needs nlohmann/json.hpp and cxxopts)
CONFORMANCE_SOURCES :=
endif
ifneq ($(filter doctest-dev,$(MISSING)),)
$(info NO_SETUP: no doctest: the tests cannot be built)
endif
ifneq ($(filter libturbojpeg libpng16,$(MISSING)),)
$(info NO_SETUP: no $(filter libturbojpeg libpng16,$(MISSING)): such pictures cannot be read)
TEST_SOURCES := $(filter-out %/test_pictures.cpp %/test_coco.cpp,$(TEST_SOURCES))
endif
ifneq ($(filter libssl3,$(MISSING)),)
$(info NO_SETUP: no OpenSSL library: several processes cannot meet, their tests fail)
endif
ifneq ($(filter libucx0,$(MISSING)),)
$(info NO_SETUP: no UCX library: processes of one machine exchange messages over TLS)
endif
ifneq ($(filter libllvm,$(MISSING)),)
$(info NO_SETUP: no LLVM library of version 16 to 21: the CPU device needs CPU_COMPILER=cc)
endif
endif

# --- Flags ---------------------------------------------------------------------------------------

# Line tables only (-g1): enough for a stack trace, cheap to write and link.
OPTIMIZE_release := -O2 -g1 -DNDEBUG
OPTIMIZE_asan := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined \
  -fno-sanitize-recover=undefined
OPTIMIZE_tsan := -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread
ifeq ($(OPTIMIZE_$(CONFIG)),)
$(error CONFIG=$(CONFIG): it is one of release, asan, tsan)
endif
SANITIZE := $(filter -fsanitize=%,$(OPTIMIZE_$(CONFIG)))
# ccache knows a precompiled header by the sum beside it: compiled again it has other bytes.
LAUNCHER := $(if $(shell command -v ccache),env CCACHE_PCH_EXTSUM=1 \
  CCACHE_SLOPPINESS=$(CCACHE_SLOPPINESS)$(comma)pch_defines$(comma)time_macros ccache)
PCH ?= $(if $(SANITIZE),0,1)
# Neighbours in a folder, which has no more than 16 files, are compiled as one source: most of a
# compiler's time goes to headers and templates that they share, and five at a time took an eighth
# more. Each of those left alone has a name that a neighbour has as well.
UNITY ?= 16
ALONE := codegen/options/fragments.cpp codegen/render/c/preludes.cpp devices/webgpu/scripts.cpp \
  runtime/program/web_files.cpp runtime/schedule/order.cpp tiny/models/page/chat_page.cpp \
  tiny/nn/loss.cpp tiny/models/generate.cpp $(addprefix tiny/models/tokenizers/,read_steps.cpp write_gguf.cpp) \
  $(addprefix tiny/models/files/formats/,gguf_writer.cpp shard_index.cpp)
# Folders whose code works for long, on bytes or on every node of a kernel. The others decide things
# once for a graph or a kernel, or wait for a device: -O1 takes a third off their compilation.
HOT := tiny/base tiny/ir tiny/rewrite tiny/data tiny/models/text tiny/models/tokenizers/parts \
  tiny/models/files/formats codegen/kernel codegen/passes codegen/proof codegen/render \
  runtime/device runtime/schedule runtime/launch runtime/jit devices/cpu devices/emulator
MOLD := $(if $(shell command -v mold),-fuse-ld=mold)

ALL_CPPFLAGS := -I. $(if $(filter 0,$(Z3)),-DTINY_Z3=0) $(CPPFLAGS)
# GCC collects its garbage after each few hundred MB: a seventh of its time, to save a fifth of them.
COLLECTS := $(if $(findstring Free Software,$(shell $(CXX) --version)),--param ggc-min-heapsize=4000000)
# -fPIC: libtiny.so and libtiny.a are made of the same objects; what the compiler inlines, and what
# an executable's linker makes of it, is the same without.
ALL_CXXFLAGS := -std=c++20 -Wall -Wextra -pthread -fPIC -fno-semantic-interposition $(COLLECTS) \
  $(OPTIMIZE_$(CONFIG)) $(CXXFLAGS)
# Tests run once and are many: compiling them fast is worth more than running them fast, except
# for what all of them call (test/*.cpp, the reference evaluator).
TEST_FLAGS := -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS -DTINY_ROOT='"$(CURDIR)"' \
  -DTINY_BUILD='"$(CURDIR)/$(BUILD)"'
ALL_LDFLAGS := -pthread $(SANITIZE) $(MOLD) $(LDFLAGS)
ALL_LDLIBS := $(LDLIBS) $(if $(filter zlib1g-dev,$(MISSING)),,-lz) \
  $(if $(filter libpcre2-dev,$(MISSING)),,-lpcre2-8) \
  $(if $(filter libutf8proc-dev,$(MISSING)),,-lutf8proc) -ldl -lpthread
WERROR := $(if $(filter true,$(CI)),-Werror)

# --- Objects, library, programs ------------------------------------------------------------------

object = $(1:%.cpp=$(BUILD)/%.o)
# The objects of a folder's sources, UNITY sources each. Such an object is called by their names: of
# other sources it is another object.
group = $(BUILD)/$(dir $(firstword $(1)))$(subst $() $(),+,$(basename $(notdir $(1)))).o
# $(2) of the sources $(1) in each.
groups = $(if $(1),$(call group,$(wordlist 1,$(2),$(1))) \
  $(call groups,$(wordlist $(words x $(wordlist 1,$(2),$(1))),$(words $(1)),$(1)),$(2)))
sources = $(patsubst %,$(patsubst $(BUILD)/%,%,$(dir $(1)))%.cpp,$(subst +, ,$(basename $(notdir $(1)))))
LIBRARY_OBJECTS := $(strip $(call object,$(filter $(ALONE),$(LIBRARY_SOURCES))) \
  $(foreach folder,$(FOLDERS),$(call groups,$(filter-out $(ALONE),$(wildcard $(folder)/*.cpp)),$(UNITY))))
LIBRARY := $(BUILD)/libtiny.a
VERSION := $(shell sed -nE 's/^\#define TINY_VERSION "([0-9.]+)".*/\1/p' tiny/run/version.h)
SHARED := $(BUILD)/libtiny.so.$(VERSION)
TEST_PROGRAM := $(BUILD)/tests
FAKE_HIP := $(BUILD)/libfake_hip.so
EXAMPLES := $(patsubst %.cpp,$(BUILD)/%,$(EXAMPLE_SOURCES))
DOCTOR := $(BUILD)/doctor
FUZZ := $(BUILD)/fuzz
TOOLS := $(subst _,-,$(TOOL_SOURCES:extra/%.cpp=$(BUILD)/%))
BENCHES := $(patsubst extra/bench/%.cpp,$(BUILD)/bench/%,$(BENCH_SOURCES))
CONFORMANCE := $(if $(CONFORMANCE_SOURCES),$(BUILD)/conformance)
README_EXAMPLE := $(if $(wildcard README.md),$(BUILD)/readme_example)
# KernelBench's problems as programs (docs/kernelbench.md): written into a folder of the build, one
# source each, and linked into one program. SMALL=1: sizes for a CPU.
PROBLEMS ?= ../shared/kernelbench
# The first that has PyTorch; looked for where it is needed.
PYTHON = $(or $(shell for p in python3 /usr/bin/python3; do \
  $$p -c 'import torch' 2>/dev/null && echo $$p && break; done),python3)
KERNELBENCH := $(BUILD)/kernelbench$(if $(SMALL),-small)
KERNELBENCH_SOURCES := $(wildcard extra/kernelbench/*.cpp)
KERNELBENCH_OBJECTS := $(patsubst %.cpp,%.o,$(wildcard $(KERNELBENCH)/level*.cpp))
# As many as the page has C++ blocks.
QUICKSTART := $(patsubst %,$(BUILD)/quickstart/%,$(if $(wildcard docs/quickstart.md),\
  $(shell seq $$(grep -c '^```cpp' docs/quickstart.md))))

# Keeps the target as it is unless its text changes: what depends on it is then made again.
define write_if_changed
	@mkdir -p $(@D)
	@cmp -s $@ - <<<'$(subst ','\'',$(1))' || cat >$@ <<<'$(subst ','\'',$(1))'
endef

$(BUILD)/flags: FORCE | setup
	$(call write_if_changed,$(CXX) $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) $(TEST_FLAGS) $(HOT))
$(BUILD)/sources: FORCE | setup
	$(call write_if_changed,$(LIBRARY_SOURCES) $(TEST_SOURCES) $(CONFORMANCE_SOURCES) $(ALL_LDLIBS))

compile = $(CXX) $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) $(EXTRA_FLAGS) $(WERROR)
# Compilers take NAME.h.gch for `-include NAME.h` where the flags are those that made it.
precompiled = $(PRECOMPILED:%=-include $(BUILD)/pch/%.h -fpch-preprocess -Winvalid-pch)

$(BUILD)/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CXX  $<"
	@$(LAUNCHER) $(compile) $(precompiled) -MMD -MP -c $< -o $@

define compile_group
$(1): $(call sources,$(1)) $(BUILD)/flags
	@mkdir -p $$(@D)
	@echo "  CXX  $(call sources,$(1))"
	@$$(LAUNCHER) $$(compile) $$(precompiled) -Wno-subobject-linkage -MMD -MP \
	  $(patsubst %,-include %,$(filter-out $(lastword $(call sources,$(1))),$(call sources,$(1)))) \
	  -c $(lastword $(call sources,$(1))) -o $$@
endef
$(foreach object,$(LIBRARY_OBJECTS),$(eval $(call compile_group,$(object))))
COLD_OBJECTS := $(if $(SANITIZE),,$(filter-out $(HOT:%=$(BUILD)/%/%),$(LIBRARY_OBJECTS)))
# Private: of what an object is made of, the precompiled header would be made with its flags.
$(COLD_OBJECTS) $(BUILD)/pch/cold.h.gch: private EXTRA_FLAGS = -O1 $(CXXFLAGS)

$(BUILD)/pch/%.h.gch: extra/precompiled/%.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  PCH  $<"
	@echo '#include "$<"' >$(@:.gch=)
	@$(compile) -MMD -MP -MT $@ -MF $@.d -x c++-header $(@:.gch=) -o $@
	@$(if $(LAUNCHER),{ echo $(compile) && $(compile) -E -P $(@:.gch=); } | sha1sum >$@.sum)
-include $(wildcard $(BUILD)/pch/*.d)

# Preludes of kernels and scripts of browsers are files of their own language, which the library
# holds as raw strings.
EMBEDDED := $(wildcard codegen/render/c/prelude/* devices/webgpu/*js runtime/program/*.js \
  runtime/program/*.html tiny/models/page/*.js tiny/models/page/*.html examples/pages/*.html)
EMBEDS := $(call object,codegen/render/c/preludes.cpp devices/webgpu/scripts.cpp \
  runtime/program/web_files.cpp tiny/models/page/chat_page.cpp examples/mnist.cpp \
  examples/cifar.cpp)
$(BUILD)/embedded/%.inc: %
	@mkdir -p $(@D)
	@{ echo 'R"TEXT('; cat $<; echo ')TEXT"'; } >$@
$(EMBEDS): private EXTRA_FLAGS += -I$(BUILD)
$(EMBEDS): | $(EMBEDDED:%=$(BUILD)/embedded/%.inc)

# Unit tests are compiled six at a time as well, of those with the same initial, each in a namespace
# of its own behind the headers of all: a third of the time. Not those with code of other namespaces.
TESTS_ALONE := $(shell grep -lE '^namespace tiny|^\#if __has_include' test/unit/*.cpp)
TEST_GROUPS := $(strip $(foreach letter,a b c d e f g h i j k l m n o p q r s t u v w x y z,\
  $(call groups,$(filter-out $(TESTS_ALONE),$(filter test/unit/test_$(letter)%,$(TEST_SOURCES))),6)))
define compile_tests
$(1:.o=.cpp): $(call sources,$(1)) $(BUILD)/sources
	@mkdir -p $$(@D)
	@{ sed -n '/^#include/p' $(call sources,$(1)) | LC_ALL=C sort -u; \
	  printf 'namespace %s {\n#include "%s"\n}\n' $(foreach source,$(call sources,$(1)),\
	  $(basename $(notdir $(source))) $(source)); } >$$@
$(1): $(1:.o=.cpp) $(BUILD)/flags
	@echo "  CXX  $(call sources,$(1))"
	@$$(LAUNCHER) $$(compile) $$(precompiled) -MMD -MP -c $$< -o $$@
endef
$(foreach object,$(TEST_GROUPS),$(eval $(call compile_tests,$(object))))
TEST_OBJECTS := $(TEST_GROUPS) $(call object,$(filter-out $(foreach object,$(TEST_GROUPS),\
  $(call sources,$(object))),$(filter $(TEST_FOLDERS:%=test/%/%),$(TEST_SOURCES))))
# Those that `make fuzz` links as well, without doctest, see none of it.
FUZZ_OBJECTS := $(call object,$(FUZZ_SOURCES))
CONFORMANCE_OBJECTS := $(call object,$(CONFORMANCE_SOURCES))
PROGRAM_SOURCES := $(EXAMPLE_SOURCES) $(TOOL_SOURCES) $(BENCH_SOURCES) $(KERNELBENCH_SOURCES)

# The objects $(2) are compiled with the precompiled header $(1).
define use_precompiled
$(2): PRECOMPILED := $(1)
$(2): $(BUILD)/pch/$(1).h.gch
endef
ifneq ($(PCH),0)
$(eval $(call use_precompiled,library,$(filter-out $(COLD_OBJECTS),$(LIBRARY_OBJECTS)) \
  $(call object,$(PROGRAM_SOURCES))))
$(if $(COLD_OBJECTS),$(eval $(call use_precompiled,cold,$(COLD_OBJECTS))))
$(if $(filter doctest-dev,$(MISSING)),,$(eval $(call use_precompiled,tests,$(filter-out $(FUZZ_OBJECTS),$(TEST_OBJECTS)))))
$(eval $(call use_precompiled,conformance,$(CONFORMANCE_OBJECTS)))
$(if $(KERNELBENCH_OBJECTS),$(eval $(call use_precompiled,kernelbench,$(KERNELBENCH_OBJECTS))))
endif

$(BUILD)/test/%.o: EXTRA_FLAGS = $(TEST_FLAGS)
$(TEST_OBJECTS) $(CONFORMANCE_OBJECTS) $(BUILD)/pch/tests.h.gch $(BUILD)/pch/conformance.h.gch: \
  EXTRA_FLAGS = $(TEST_FLAGS) -O0

$(LIBRARY): $(LIBRARY_OBJECTS) $(BUILD)/sources
	@rm -f $@
	@$(AR) rcs $@ $(filter %.o,$^)

EXPORTS := extra/install/libtiny.map
$(SHARED): $(LIBRARY_OBJECTS) $(BUILD)/sources $(EXPORTS)
	@echo "  LINK $@"
	@$(CXX) -shared $(ALL_LDFLAGS) -Wl,-soname,libtiny.so.$(basename $(VERSION)) \
	  -Wl,--version-script=$(EXPORTS) -Wl,-Bsymbolic-functions $(filter %.o,$^) $(ALL_LDLIBS) -o $@

link = @mkdir -p $(@D); echo "  LINK $@"; \
  $(CXX) $(ALL_LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) $(1) $(ALL_LDLIBS) -o $@

$(EXAMPLES): $(BUILD)/examples/%: $(BUILD)/examples/%.o $(LIBRARY)
	$(call link)
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/extra/bench/%.o $(LIBRARY)
	$(call link)
.SECONDEXPANSION:
$(TOOLS): $(BUILD)/%: $(BUILD)/extra/$$(subst -,_,$$*).o $(LIBRARY)
	$(call link)
ifneq ($(filter doctest-dev,$(MISSING)),)
$(TEST_PROGRAM):
	@echo 'the tests need doctest (package doctest-dev)' >&2; exit 1
else
$(TEST_PROGRAM): $(TEST_OBJECTS) $(call object,$(wildcard test/*.cpp)) $(LIBRARY) \
  $(BUILD)/sources | $(FAKE_HIP)
	$(call link)
endif
# What the tests of the device HIP open in place of AMD's libraries.
FAKE_SOURCES := $(wildcard test/fake/*.cpp)
$(FAKE_HIP): $(FAKE_SOURCES) $(wildcard test/fake/*.h) codegen/target/source.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CXX  $(FAKE_SOURCES)"
	@$(CXX) $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) $(WERROR) -fPIC -shared $(ALL_LDFLAGS) \
	  $(FAKE_SOURCES) -o $@
$(BUILD)/conformance: $(call object,$(CONFORMANCE_SOURCES) test/reference.cpp) $(LIBRARY) \
  $(BUILD)/sources
	$(call link)

$(KERNELBENCH_OBJECTS): %.o: %.cpp extra/kernelbench/problem.h $(BUILD)/flags
	@$(LAUNCHER) $(compile) $(precompiled) -c $< -o $@
$(KERNELBENCH_OBJECTS): EXTRA_FLAGS = -O0 -g0
$(BUILD)/pch/kernelbench.h.gch: private EXTRA_FLAGS = -O0 -g0
$(KERNELBENCH)/kernelbench: $(KERNELBENCH_OBJECTS) $(call object,$(KERNELBENCH_SOURCES)) $(LIBRARY)
	$(call link,-Wl$(comma)--as-needed)

$(FUZZ): $(FUZZ_OBJECTS) $(LIBRARY) $(BUILD)/sources
	$(call link)

# The README's program is compiled as it stands there: the first C++ block with a main.
$(BUILD)/readme_example.cpp: README.md | setup
	@mkdir -p $(@D)
	@awk '/^```cpp/ {inside = 1; text = ""; next} \
	  /^```/ {if (inside && text ~ /int main/) {printf "%s", text; found = 1; exit} inside = 0} \
	  inside {text = text $$0 "\n"} END {exit !found}' $< >$@ || \
	  { echo "README.md: no \`\`\`cpp block with int main" >&2; exit 1; }
$(BUILD)/readme_example: $(BUILD)/readme_example.cpp $(LIBRARY) $(BUILD)/flags
	@echo "  CXX  $< (README.md)"
	@$(CXX) $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) $(WERROR) $(ALL_LDFLAGS) $(filter %.cpp %.a,$^) \
	  $(ALL_LDLIBS) -MMD -MP -MT $@ -MF $@.d -o $@

# The programs of docs/quickstart.md, which test/train/test_quickstart.cpp runs. Like the tests they
# run once.
$(QUICKSTART:=.cpp): $(BUILD)/quickstart/%.cpp: docs/quickstart.md | setup
	@mkdir -p $(@D)
	@awk '/^```cpp/ {inside = ++block == $*; next} /^```/ {inside = 0} inside' $< >$@
$(QUICKSTART): $(BUILD)/quickstart/%: $(BUILD)/quickstart/%.cpp $(LIBRARY) $(BUILD)/flags
	@echo "  CXX  $< (docs/quickstart.md)"
	@$(LAUNCHER) $(CXX) $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) -O0 $(WERROR) -MMD -MP -MT $@ -MF $@.d \
	  -c $< -o $@.o
	@$(CXX) $(ALL_LDFLAGS) $@.o $(LIBRARY) $(ALL_LDLIBS) -o $@

OBJECTS := $(LIBRARY_OBJECTS) $(TEST_GROUPS) \
  $(call object,$(TEST_SOURCES) $(FUZZ_SOURCES) $(CONFORMANCE_SOURCES) \
  $(wildcard examples/*.cpp extra/*.cpp extra/bench/*.cpp extra/kernelbench/*.cpp))
-include $(OBJECTS:.o=.d) $(BUILD)/readme_example.d $(QUICKSTART:=.d)

# Order-only: it runs before anything is compiled and makes nothing out of date.
.PHONY: setup FORCE
setup:
	@$(if $(NO_SETUP),:,extra/setup.sh)
FORCE:

# --- Targets -------------------------------------------------------------------------------------

.PHONY: help all install uninstall install-test mnist cifar chat gpt2 bert retinanet doctor test \
  emulator-test webgpu-test beam-test \
  gpu-test gpu-test-built gpu-headers gpu-sanitize gpu-sanitize-built fuzz check headers \
  format-check asan tsan golden golden-update bench bench-compile kernelbench \
  kernelbench-program kernelbench-carry format clean

help:
	@echo 'make mnist           trains the convolutional network on digits: ARGS="--steps 100"'
	@echo 'make cifar           trains the network of the record runs on pictures: ARGS="--epochs 10"'
	@echo 'make chat            writes on with a language model: ARGS="--model folder"'
	@echo 'make gpt2            trains GPT-2 from scratch on a text: ARGS="--data text.txt"'
	@echo 'make bert            fills gaps in texts, then learns what they are about: ARGS="--steps 300"'
	@echo 'make retinanet       trains a detector of objects on drawn scenes or COCO: ARGS="--data folder"'
	@echo 'make doctor          prints devices, compilers and libraries, tests each device'
	@echo 'make test            every test that this machine can run: FILTER="reshape"'
	@echo 'make emulator-test   operator tests and suites as kernels of GPUs, executed on the CPU'
	@echo 'make webgpu-test     suites as WGSL, and the pages of examples, in a headless Chromium'
	@echo 'make beam-test       searches the options of 200 random kernels and compares their results'
	@echo 'make gpu-test        what g++, make and CUDA alone can build, run on the GPU: docs/testing.md'
	@echo 'make gpu-sanitize    the operator tests on the GPU under compute-sanitizer'
	@echo 'make fuzz            random programs in child processes: N=, SECONDS=, SEED=, DEVICE=, SETTING='
	@echo 'make check           format, headers, unit, golden and lint tests: about a minute'
	@echo 'make asan, tsan      the tests under the address or the thread sanitizer'
	@echo 'make golden          the golden texts of kernels; golden-update writes them and the pages anew'
	@echo 'make bench-compile   times of scheduling and lowering; make bench: all of extra/bench'
	@echo 'make kernelbench     the problems of KernelBench beside PyTorch: ARGS="--levels 1"'
	@echo 'make all             library, examples and benchmarks in $(BUILD)'
	@echo 'make install         headers, libraries, tiny.pc, CMake package: PREFIX=/usr/local, DESTDIR='
	@echo 'make install-test    programs outside this folder: pkg-config, find_package(tiny)'
	@echo 'make uninstall       removes what make install made there'
	@echo 'make format, clean   clang-format of every source; removes build/'
	@echo 'NO_SETUP=1 installs nothing, CONFIG=asan builds in build/asan, CI=true: -Werror'

all: $(LIBRARY) $(SHARED) $(EXAMPLES) $(BENCHES) $(TOOLS)

mnist cifar chat gpt2 bert retinanet: %: $(BUILD)/examples/%
	@$< $(ARGS)

doctor: $(DOCTOR)
	@$< $(ARGS)

# Of the headers what tiny/tiny.h, models.h and onnx.h reach: the others are no interface.
installed_headers = $(filter tiny/%.h,$(shell $(CXX) $(ALL_CPPFLAGS) -std=c++20 -MM tiny/tiny.h tiny/models.h tiny/onnx.h))
install: $(LIBRARY) $(SHARED)
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' \
	  extra/install/install.sh install $(BUILD) $(VERSION) '$(strip $(ALL_LDLIBS))' \
	  '$(installed_headers)'

uninstall:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' \
	  extra/install/install.sh uninstall

run_tests = @extra/run_tests.sh $(TEST_PROGRAM) $(or $(CONFORMANCE),none) $(1)

# A program that links a sanitized library has to be sanitized itself: not what users build.
INSTALL_TEST := $(if $(SANITIZE),,test/install/test_install.sh)
KERNELBENCH_TEST := $(if $(SANITIZE),,test/kernelbench/test_kernelbench.sh)
test: export SCRIPTS = $(INSTALL_TEST) $(KERNELBENCH_TEST)
test: $(if $(KERNELBENCH_TEST),$(call object,$(KERNELBENCH_SOURCES)))
test: $(TEST_PROGRAM) $(FUZZ) $(EXAMPLES) $(README_EXAMPLE) $(QUICKSTART) $(CONFORMANCE) \
  $(if $(INSTALL_TEST),$(SHARED))
	$(call run_tests,$(if $(FILTER),-tc='*$(FILTER)*'))

install-test: $(LIBRARY) $(SHARED) $(BUILD)/readme_example.cpp
	@test/install/test_install.sh $(BUILD)

# `make test` runs a part of these, another one each day.
EMULATED ?= EMULATOR EMU:CUDA:sm_80 EMU:HIP:gfx942 EMU:HIP:gfx1201 EMU:LLVM:gfx942
webgpu-test: $(CONFORMANCE) $(addprefix $(BUILD)/examples/,mnist cifar chat)
	@$(if $(NO_SETUP),,extra/setup.sh --webgpu || true)
	@extra/webgpu/test.sh $^

emulator-test: $(TEST_PROGRAM) $(CONFORMANCE)
	@export EMULATOR_PARTS=1; for device in $(EMULATED); do export DEVICE=$$device; \
	  extra/run_tests.sh $(TEST_PROGRAM) none -sf='*test/ops/*$(comma)*test/fuzz/*$(comma)*test/programs/*' && \
	  extra/run_tests.sh none $(or $(CONFORMANCE),none) || exit 1; done

# For a machine with a GPU that has g++, make and CUDA, and perhaps no header of a package: what
# needs one that is missing is left out. `make gpu-headers` puts those of this machine into
# build/carry, to be taken there with the sources. GPU= names another device.
GPU ?= CUDA
CARRY := build/carry

beam-test: $(TEST_PROGRAM)
	@BEAM_KERNELS=200 $< -tc='kernels of random programs searched*'

gpu-test:
	@$(MAKE) --no-print-directory NO_SETUP=1 gpu-test-built \
	  CPPFLAGS='$(CPPFLAGS) $(if $(wildcard $(CARRY)),-I$(CARRY))'

gpu-test-built: $(if $(filter doctest-dev,$(MISSING)),,$(TEST_PROGRAM)) $(CONFORMANCE) \
  $(EXAMPLES) $(README_EXAMPLE) $(QUICKSTART) $(BUILD)/bench/gpu
	@DEVICE=$(GPU) extra/gpu_test.sh $(BUILD)

# The operator cases under compute-sanitizer.
gpu-sanitize:
	@$(MAKE) --no-print-directory NO_SETUP=1 gpu-sanitize-built \
	  CPPFLAGS='$(CPPFLAGS) $(if $(wildcard $(CARRY)),-I$(CARRY))'

gpu-sanitize-built: $(TEST_PROGRAM) $(CONFORMANCE)
	@DEVICE=$(GPU) extra/gpu_sanitize.sh $(TEST_PROGRAM) $(or $(CONFORMANCE),none)

gpu-headers:
	@rm -rf $(CARRY)
	@printf '#include <%s>\n' doctest/doctest.h cxxopts.hpp nlohmann/json.hpp | \
	  $(CXX) $(ALL_CPPFLAGS) -std=c++20 -M -x c++ - | tr -s ' \\' '\n' | \
	  sed -nE 's,.*/((doctest|nlohmann)/.*|cxxopts\.hpp)$$,& $(CARRY)/\1,p' | \
	  while read -r from to; do mkdir -p "$$(dirname "$$to")" && cp "$$from" "$$to" || exit 1; done
	@du -sh $(CARRY)

# Other variables of the program: test/driver/main.cpp.
FUZZ_ARGUMENTS := N SECONDS SEED DEVICE SETTING JOBS BATCH SILENCE FAILURES FOLDER ROWS PRINT
fuzz: $(FUZZ)
	@$< $(foreach name,$(FUZZ_ARGUMENTS),$(if $($(name)),$(name)='$($(name))'))

check: $(TEST_PROGRAM) headers format-check
	$(call run_tests,-sf='*test/unit/*$(comma)*test/golden/*$(comma)*test/lint/*')

golden: $(TEST_PROGRAM)
	$(call run_tests,-sf='*test/golden/*')

golden-update: $(TEST_PROGRAM)
	@GOLDEN_UPDATE=1 $(TEST_PROGRAM) -sf='*test/golden/*'

asan:
	@$(MAKE) --no-print-directory CONFIG=asan test

tsan:
	@$(MAKE) --no-print-directory CONFIG=tsan test

bench-compile: $(BUILD)/bench/compile
	@$< $(ARGS)

# Two steps: the sources that the second one compiles are not there before the first.
kernelbench-program: | setup
	@mkdir -p $(KERNELBENCH)
	@$(PYTHON) extra/kernelbench/translate.py --problems $(PROBLEMS) $(if $(SMALL),--small) \
	  --to $(KERNELBENCH)
	@$(MAKE) --no-print-directory $(KERNELBENCH)/kernelbench

# What a machine with a GPU needs that builds nothing: the program, the problems.
kernelbench-carry: kernelbench-program
	@rm -rf $(CARRY)/kernelbench && mkdir -p $(CARRY)/kernelbench
	@strip -o $(CARRY)/kernelbench/kernelbench $(KERNELBENCH)/kernelbench
	@cp -r $(KERNELBENCH)/problems.json $(wildcard $(KERNELBENCH)/data) $(CARRY)/kernelbench
	@cp -r $(PROBLEMS) $(CARRY)/kernelbench/problems
	@du -sh $(CARRY)/kernelbench

kernelbench: kernelbench-program
	@$(PYTHON) extra/kernelbench/run.py --problems $(PROBLEMS) --program $(KERNELBENCH) \
	  --append $(ARGS)

# One after the other: they measure.
bench: $(BENCHES)
	@for program in $(sort $^); do echo "== $$program"; $$program $(ARGS) || exit 1; done

# Every header compiles alone.
HEADER_STAMPS := $(HEADERS:%=$(BUILD)/headers/%.ok)
headers: $(HEADER_STAMPS)
$(HEADER_STAMPS): $(BUILD)/headers/%.ok: % $(BUILD)/flags
	@mkdir -p $(@D)
	@$(CXX) $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) $(TEST_FLAGS) $(WERROR) -fsyntax-only \
	  -MMD -MP -MT $@ -MF $@.d -x c++ - <<<'#include "$<"'
	@touch $@
-include $(HEADER_STAMPS:=.d)

format-check:
	@if ! command -v clang-format >/dev/null; then \
	  echo 'check: no clang-format: the format is not checked'; exit 0; fi; \
	for file in $(FORMATTED); do \
	  clang-format --dry-run -Werror $$file 2>/dev/null || { echo "make format changes $$file"; \
	    status=1; }; \
	done; exit $${status:-0}

format:
	@clang-format -i $(FORMATTED)

# Alone: the other targets would count on files that are about to go.
ifneq ($(filter clean,$(MAKECMDGOALS)),)
ifneq ($(filter-out clean,$(MAKECMDGOALS)),)
$(error 'make clean' runs alone: make clean && make $(filter-out clean,$(MAKECMDGOALS)))
endif
endif
clean:
	rm -rf build
