# make            builds every program for MODE
# make run        installs what is missing, builds, and runs the main job
# make test       builds and runs all tests, the emulator's too; the last line is "N passed, N failed"
# make test MODE=emu SEED=7   the unit tests under the emulator, but for some that would take it minutes, in a seed's order
# make test-fast  the tests without the programs' and the emulator's
# make bench      speed: tokens/s, GFLOP/s, time by kernel; each operation beside what memory or multipliers allow;
#                 time and bandwidth of each communication
# make plots      pictures of the lessons from 02 on, in build/plots: memory, traffic, timelines (needs Python with matplotlib)
# make gpu-check  on a machine with a GPU: every kernel against the CPU's values, compute-sanitizer, the programs, speed
# make deps       checks for the packages and, on Debian and Ubuntu, installs what is missing
# make clean
# MODE=cpu        the CPU, one thread per block; the default where there is no GPU
# MODE=emu        the CPU with a GPU's geometry, which looks for races and the like: common/docs/emulator.md
# MODE=cuda       nvcc, cuBLAS and NCCL; the default where there is a GPU

MODE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && command -v nvcc >/dev/null && echo cuda || echo cpu)
MODES := cpu emu cuda
ifneq ($(words $(MODE))$(filter $(MODE),$(MODES)),1$(MODE))
$(error MODE=$(MODE) is not known; use one of: $(MODES))
endif

BUILD := build/$(MODE)

LESSONS := $(patsubst %/main.cpp,%,$(wildcard 0[1-7]_*/main.cpp))
TOOLS := $(filter compare bench bench_comm kernels,$(patsubst common/tools/%.cpp,%,$(wildcard common/tools/*.cpp)))
# Kernels that bring a main of their own, for the emulator.
EMULATED := $(if $(filter emu,$(MODE)),$(patsubst common/tools/emulate/%.cu,emulate_%,$(wildcard common/tools/emulate/*.cu)))

# A library's sources: everything in its folder, common/ or a lesson's, but programs' mains, tools and other modes' device layers.
# The emulator has the CPU's streams and matrix product, and memory of its own.
OWN := $(if $(filter emu,$(MODE)),cpu) $(MODE)
library_sources = $(filter-out $(TOOLS:%=common/tools/%.cpp) %/main.cpp common/tools/emulate/% \
  $(if $(filter emu,$(MODE)),common/device/cpu/memory.cpp) \
  $(foreach m,$(filter-out $(OWN),$(MODES)),common/device/$(m)/% common/kernels/$(m)/% common/comm/$(m)/%), \
  $(shell find $(2) -name '*.$(1)' | sort))
# Host code that knows nothing of devices is the same in every mode. With SHARE_HOST the emulator takes the CPU's, for a short build,
# without what its sanitizers would check there.
SHARED := $(if $(SHARE_HOST),$(foreach d,io verify app tools,common/$(d)/%))
# Kernels first: the longest to compile are among them.
library_objects = $(patsubst %,$(BUILD)/obj/%.o,$(call library_sources,cu,$(1)) $(filter-out $(SHARED),$(call library_sources,cpp,$(1)))) \
  $(patsubst %,build/cpu/obj/%.o,$(filter $(SHARED),$(call library_sources,cpp,$(1))))
LESSON_LIBRARIES := $(LESSONS:%=$(BUILD)/lib%.a)
TEST_GROUPS := $(patsubst tests/%/,%,$(dir $(wildcard tests/*/*_test.cpp)))
TEST_GROUPS := $(sort $(TEST_GROUPS))
ifeq ($(MODE),emu)
TEST_GROUPS := unit parallel
endif
PROGRAMS := $(addprefix $(BUILD)/,$(LESSONS) $(TOOLS) $(EMULATED))
TESTS := $(addprefix $(BUILD)/tests/,$(TEST_GROUPS))
# The parallel tests run on each of these numbers of ranks; those that train, on a few.
COMMUNICATION := Comm.*:MeshTest.*:OrderTest.*:OnRoot.*
CUT_MODELS := TensorParallel.*:CutLayers.*:SequenceLayouts.*:SequenceParallel.*:ContextAttention.*:ContextParallel.*
# Those whose waits between streams the emulator checks: every strategy and option.
TRAINING_ON_STREAMS := DataParallel.EveryStrategyTrains*:DataParallel.EveryOption*:DataParallel.TwoRuns*:Buckets.P09*:Zero.P10*:TensorParallel.EveryShape*:TensorParallel.Overlap*:ContextAttention.P34_Output*:ContextParallel.EveryKind*:ContextParallel.Overlap*:SequenceParallel.EveryModel*:SequenceParallel.Overlap*:PipelineSchedules.P36_Every*:PipelineRuntime.P39*:ExpertParallel.EveryDispatcher*:ExpertParallel.SharedExperts*:ExpertAxes.EveryLayout*
parallel_runs = $(foreach n,1 2 3 4 5,$(1)@$(n)) $(1)@6=$(CUT_MODELS):Expert*.* $(1)@8=$(COMMUNICATION):$(CUT_MODELS):Pipeline*.*:Expert*.* \
  $(1)@16=$(COMMUNICATION)
# Of the programs' tests some mostly wait, so they run beside the others; those on several hosts compare times, and run alone.
WAITING := GpuCheck.*:RanksFailing.*:Plots.*
TEST_RUNS := $(foreach t,$(filter-out %/programs,$(TESTS)),$(if $(filter %/parallel,$(t)),$(call parallel_runs,$(t)),$(t)))
program_tests = $(patsubst %,%=$(1),$(filter %/programs,$(TESTS)))
ALL_TEST_RUNS = $(TEST_RUNS) $(call program_tests,-ClusterHosts.*:$(WAITING)) --beside $(call program_tests,$(WAITING)) $(1) \
  --alone $(call program_tests,ClusterHosts.*)

CXX := mpicxx
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Werror
DEFINES = -DREF5D_SOURCE_DIR='"$(CURDIR)"' -DREF5D_BUILD_DIR='"$(CURDIR)/$(BUILD)"'
OPTIMIZE := -O2
CXXFLAGS = -std=c++20 $(OPTIMIZE) -g1 -I. $(WARNINGS)
LDLIBS := -lfmt
# Lessons build on earlier ones, so the order of their libraries does not matter.
LINK = $(CXX) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group
# Most of what a file of host code takes to compile is the standard library's headers, so common/standard_headers.h is compiled once
# for each level of optimization. MODE=cuda does without, which shows whether a file names what it needs.
LEVELS := $(if $(filter cpu,$(MODE)),-O2) $(if $(filter cpu emu,$(MODE)),-O0 -O1)
PRECOMPILED = $(if $(strip $(LEVELS)),-include $(BUILD)/headers/$(OPTIMIZE).h)
COMPILE_CPP = $(CXX) $(CXXFLAGS) $(HOST_SANITIZERS) $(PRECOMPILED) $(DEFINES) -MMD -MP -c $< -o $@

ifeq ($(MODE),cpu)
KERNEL_FLAGS := -O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp
CXXFLAGS += -fopenmp
LDLIBS += -fopenmp
$(BUILD)/bench: LDLIBS += -lopenblas  # to compare with
COMPILE_CU = $(CXX) -x c++ $(CXXFLAGS) $(KERNEL_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/obj/common/kernels/cpu/%.cpp.o: CXXFLAGS += $(KERNEL_FLAGS)
$(BUILD)/obj/common/kernels/cpu/%.cpp.o: PRECOMPILED =
else ifeq ($(MODE),emu)
# Kernels call the emulator before every access to memory (emu/hooks.cpp); the host's code is checked by the compiler's own
# sanitizers: address, or address,undefined, which takes half as long again to build. The emulator itself, and the matrix product
# that stands for cuBLAS, are built for speed.
SANITIZE ?= address
SANITIZERS := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -Wno-maybe-uninitialized)
ACCESS_FLAGS := -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -fno-optimize-sibling-calls -fno-omit-frame-pointer \
  -fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset \
  -fstack-clash-protection -fno-crossjumping -fno-tree-tail-merge -fno-finite-loops -ftrivial-auto-var-init=pattern
OPTIMIZE := -O1
CXXFLAGS += -DREF5D_EMU -fopenmp $(if $(findstring address,$(SANITIZE)),-DREF5D_ASAN) $(if $(findstring undefined,$(SANITIZE)),-DREF5D_UBSAN)
LDLIBS += -fopenmp -lboost_context $(SANITIZERS)
$(BUILD)/bench: LDLIBS += -lopenblas
KERNEL_OPTIMIZE ?= -O2  # -Og to see a kernel's variables in gdb
COMPILE_CU = $(CXX) -x c++ $(CXXFLAGS) $(KERNEL_OPTIMIZE) -g -gno-statement-frontiers $(ACCESS_FLAGS) -MMD -MP -c $< -o $@ && \
  objcopy $(foreach f,memcpy memmove memset,--redefine-sym $(f)=ref5d_$(f)) $@
$(BUILD)/obj/common/tools/emulate/%.cu.o: WARNINGS += -Wno-unknown-pragmas -Wno-sign-compare  # as nvcc has it
HOST_SANITIZERS = $(SANITIZERS)
$(foreach f,device/emu kernels/cpu,$(BUILD)/obj/common/$(f)/%.cpp.o): HOST_SANITIZERS =
$(foreach f,device/emu kernels/cpu,$(BUILD)/obj/common/$(f)/%.cpp.o): PRECOMPILED =
$(BUILD)/obj/common/device/emu/%.cpp.o: CXXFLAGS += -O3 -g -fno-omit-frame-pointer
$(BUILD)/obj/common/kernels/cpu/%.cpp.o: CXXFLAGS += -O3 -march=native -fno-math-errno -fno-trapping-math
else
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(shell command -v nvcc)))
CUDA_ARCHS ?= 80 90 100
GENCODE := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a))
CXXFLAGS += -DREF5D_CUDA -isystem $(CUDA_HOME)/include
LDLIBS += -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib -lcudart -lcublas -lnccl -Wl,-rpath,$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib
# -Wpedantic is left out: nvcc's own generated host code is not pedantic.
COMPILE_CU = nvcc -std=c++20 -O3 -lineinfo -I. -DREF5D_CUDA $(GENCODE) -ccbin g++ -Werror all-warnings \
  -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -MMD -MP -c $< -o $@
endif

# What was built with other flags is built again.
FLAGS := $(BUILD)/flags
$(shell mkdir -p $(BUILD); \
  echo '$(CXXFLAGS) $(KERNEL_FLAGS) $(KERNEL_OPTIMIZE) $(ACCESS_FLAGS) $(SANITIZERS) $(GENCODE)' >$(FLAGS).new; \
  cmp -s $(FLAGS).new $(FLAGS) && rm $(FLAGS).new || mv $(FLAGS).new $(FLAGS))

.PHONY: all tests emulator-tests run test test-fast bench plots gpu-check deps clean
.DELETE_ON_ERROR:
.SECONDARY:
all: $(PROGRAMS)
tests: $(TESTS)

# What the emulator's tests compare with, and the program that they start.
ifeq ($(MODE),emu)
tests emulator-tests: $(BUILD)/tests/cpu_values.safetensors $(BUILD)/02_ddp_zero $(EMULATED:%=$(BUILD)/%)
emulator-tests: $(BUILD)/tests/emulator $(BUILD)/tests/parallel
$(BUILD)/tests/cpu_values.safetensors: build/cpu/kernels
	@mkdir -p $(@D)
	build/cpu/kernels --write $@
SHARED_OBJECTS := $(filter build/cpu/%,$(call library_objects,common))
.PHONY: of_cpu
of_cpu:
	@$(MAKE) --no-print-directory MODE=cpu BUILD=build/cpu SHARE_HOST= build/cpu/kernels $(SHARED_OBJECTS)
build/cpu/kernels $(SHARED_OBJECTS): of_cpu ;
endif

$(BUILD)/libref5d.a: $(call library_objects,common)
# The emulator's lessons are compiled in one piece each, as bundles of tests are (below).
$(foreach l,$(LESSONS),$(eval $(BUILD)/lib$(l).a: $(if $(filter emu,$(MODE)),$(BUILD)/obj/bundles/$(l).cpp.o,$(call library_objects,$(l)))))
$(BUILD)/libref5d.a $(LESSON_LIBRARIES):
	@rm -f $@
	ar rcs $@ $^

# The lesson pages, joined: the default training text.
TEXT_PAGES := $(wildcard README.md common/docs/*.md $(addsuffix /README.md,$(LESSONS)))
$(BUILD)/default_text.txt: $(TEXT_PAGES)
	@mkdir -p $(@D)
	cat $^ > $@
$(BUILD)/obj/common/train/default_text.cpp.o: $(BUILD)/default_text.txt
$(BUILD)/obj/common/train/default_text.cpp.o: DEFINES += -DREF5D_DEFAULT_TEXT='"$(CURDIR)/$(BUILD)/default_text.txt"'

# What computes nothing is built for a short build.
$(foreach f,0 common/io common/tools common/verify,$(BUILD)/obj/$(f)%.cpp.o): OPTIMIZE := $(if $(filter emu,$(MODE)),-O0,-O1)
$(foreach f,common/app tests,$(BUILD)/obj/$(f)/%.cpp.o): OPTIMIZE := -O0

$(LEVELS:%=$(BUILD)/headers/%.h.gch): common/standard_headers.h $(FLAGS)
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(HOST_SANITIZERS) -x c++-header -c $< -o $@
$(foreach l,$(LEVELS),$(eval $(BUILD)/headers/$(l).h.gch: OPTIMIZE := $(l)))

$(BUILD)/obj/%.cpp.o: %.cpp $(FLAGS) $(LEVELS:%=$(BUILD)/headers/%.h.gch)
	@mkdir -p $(@D)
	$(COMPILE_CPP)

$(BUILD)/obj/%.cu.o: %.cu $(FLAGS)
	@mkdir -p $(@D)
	$(COMPILE_CU)

# A lesson's own library, and those of the earlier ones that it builds on.
$(BUILD)/03_tensor_parallel: $(BUILD)/lib03_tensor_parallel.a $(BUILD)/lib02_ddp_zero.a
$(BUILD)/04_seq_context_parallel: $(BUILD)/lib04_seq_context_parallel.a $(BUILD)/lib03_tensor_parallel.a $(BUILD)/lib02_ddp_zero.a
$(BUILD)/05_pipeline: $(foreach l,05_pipeline 04_seq_context_parallel 03_tensor_parallel 02_ddp_zero,$(BUILD)/lib$(l).a)
$(BUILD)/06_expert_parallel: $(foreach l,06_expert_parallel 05_pipeline 04_seq_context_parallel 03_tensor_parallel \
                                     02_ddp_zero,$(BUILD)/lib$(l).a)
$(addprefix $(BUILD)/,$(LESSONS)): $(BUILD)/%: $(BUILD)/obj/%/main.cpp.o $(BUILD)/lib%.a $(BUILD)/libref5d.a
	$(LINK) $(LDLIBS) -o $@

$(addprefix $(BUILD)/,$(TOOLS)): $(BUILD)/%: $(BUILD)/obj/common/tools/%.cpp.o $(BUILD)/libref5d.a
	$(CXX) $^ $(LDLIBS) -o $@

$(addprefix $(BUILD)/,$(EMULATED)): $(BUILD)/emulate_%: $(BUILD)/obj/common/tools/emulate/%.cu.o $(BUILD)/libref5d.a
	$(CXX) $^ $(LDLIBS) -o $@

# One binary per folder of tests. What tests one mode's own device layer is named for it: *_cpu_test.cpp, *_emu.cu.
OF_OTHER_MODES := $(foreach m,$(filter-out $(OWN),$(MODES)),%_$(m)_test.cpp %_$(m).cu)
test_sources = $(filter-out $(OF_OTHER_MODES),$(wildcard tests/$(1)/*.cpp tests/$(1)/*.cu tests/support/*.cpp))
# Most of a test's compilation goes into headers that others include, too. So these are compiled as one file of includes each;
# names at file scope must differ within it.
BUNDLES := unit_kernel unit_io unit_others parallel programs $(if $(filter emu,$(MODE)),$(LESSONS))
test_files = $(filter tests/$(1),$(call test_sources,$(firstword $(subst /, ,$(1)))))
bundle_unit_kernel := $(call test_files,unit/kernel_%_test.cpp)
bundle_unit_io := $(call test_files,unit/io_%_test.cpp)
bundle_unit_others := $(filter-out $(bundle_unit_kernel) $(bundle_unit_io) tests/unit/emulator_%,$(call test_files,unit/%_test.cpp))
bundle_parallel := $(call test_files,parallel/%.cpp)
bundle_programs := $(call test_files,programs/%.cpp)
$(foreach l,$(LESSONS),$(eval bundle_$(l) := $(call library_sources,cpp,$(l))))
$(foreach b,$(BUNDLES),$(eval $(BUILD)/bundles/$(b).cpp: $(bundle_$(b)) $(sort $(dir $(bundle_$(b))))))
$(BUNDLES:%=$(BUILD)/bundles/%.cpp): Makefile
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(filter %.cpp,$^) >$@
$(BUNDLES:%=$(BUILD)/obj/bundles/%.cpp.o): $(BUILD)/obj/%.cpp.o: $(BUILD)/%.cpp $(FLAGS) $(LEVELS:%=$(BUILD)/headers/%.h.gch)
	@mkdir -p $(@D)
	$(COMPILE_CPP)
$(BUILD)/obj/bundles/unit_kernel.cpp.o: OPTIMIZE := -O1
$(foreach b,unit_io unit_others parallel programs,$(BUILD)/obj/bundles/$(b).cpp.o): OPTIMIZE := -O0
test_objects = $(foreach b,$(filter $(1) $(1)_%,$(BUNDLES)),$(BUILD)/obj/bundles/$(b).cpp.o) \
  $(patsubst %,$(BUILD)/obj/%.o,$(filter-out $(foreach b,$(BUNDLES),$(bundle_$(b))),$(call test_sources,$(1))))
# The emulator's own, with what they include, and the streams'. (Under MODE=emu they are in tests/unit, too.)
emulator_sources = $(filter tests/support/% tests/unit/emulator_% tests/unit/device_%,$(call test_sources,unit))
define test_binary
$(BUILD)/tests/$(1): $(2) $(3) $(BUILD)/libref5d.a
	@mkdir -p $$(@D)
	$$(LINK) -lgtest -lgtest_main $$(LDLIBS) -o $$@
endef
# The parallel tests take lessons apart, and unit tests their parts that need no ranks; the others start their programs.
$(foreach g,$(TEST_GROUPS),$(eval $(call test_binary,$(g),$(call test_objects,$(g)),\
  $(if $(filter parallel unit,$(g)),$(filter-out %/lib01_grad_accum.a,$(LESSON_LIBRARIES))))))
$(eval $(call test_binary,emulator,$(patsubst %,$(BUILD)/obj/%.o,$(emulator_sources))))

# Fills the machine's cores; a make given -j keeps its own number.
PARALLEL := $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

run: deps
	@$(MAKE) --no-print-directory $(PARALLEL) MODE=$(MODE) all
	$(BUILD)/01_grad_accum --model tiny --steps 400 --sample 300

# Tests that would take the emulator minutes.
EMU_TOO_LONG := Models/Variants.BackwardIsTheDerivativeOfForward* Gemm.BitsOfARow* Gemm.TwoRuns* Gemm.*WhenLong Gemm.Bf16* \
  *ForEveryHeadDimAndLayout AttentionBackward.ABatchMayHaveMore* AttentionBackward.Repeats* AttentionBackward.AccumulateAdds \
  ShardedOptimizer.RangesOf* FlopsPerToken* KernelCases.*
empty :=
but_for = -$(subst $(empty) $(empty),:,$(strip $(1)))
SEED ?=

test: deps
	@$(MAKE) --no-print-directory $(PARALLEL) MODE=$(MODE) all tests
ifeq ($(MODE),cpu)
	@$(MAKE) --no-print-directory $(PARALLEL) MODE=emu SHARE_HOST=1 emulator-tests
	@tests/run $(call ALL_TEST_RUNS,build/emu/tests/emulator build/emu/tests/parallel@3=$(COMMUNICATION) \
	  build/emu/tests/parallel@2=$(TRAINING_ON_STREAMS) build/emu/tests/parallel@4=Hsdp.*:Sizes.*:TensorParallel.WithEvery*:ContextParallel.WithThe*:ExpertParallel.SharedExperts*)
else ifeq ($(MODE),emu)
	@REF5D_EMU_SEED=$(SEED) tests/run '$(BUILD)/tests/unit=$(call but_for,$(EMU_TOO_LONG))' $(BUILD)/tests/parallel@2 \
	  $(BUILD)/tests/parallel@3
else
	@tests/run $(ALL_TEST_RUNS)
endif

test-fast: deps
	@$(MAKE) --no-print-directory $(PARALLEL) MODE=$(MODE) $(filter-out %/programs,$(TESTS))
	@tests/run $(TEST_RUNS)

bench: deps
	@$(MAKE) --no-print-directory $(PARALLEL) MODE=$(MODE) all
	$(BUILD)/bench
ifneq ($(MODE),emu)
	$(BUILD)/kernels --bench
	mpiexec -n 2 $(BUILD)/bench_comm
	mpiexec -n 4 $(BUILD)/bench_comm
endif

# A lesson's script runs its program, draws, and prints the pictures' names.
plots: deps
	@$(MAKE) --no-print-directory $(PARALLEL) MODE=$(MODE) $(LESSONS:%=$(BUILD)/%)
	@set -e; for lesson in $(patsubst %/plots,%,$(wildcard 0[1-7]_*/plots)); do $$lesson/plots $(BUILD) build/plots/$$lesson; done

gpu-check:
	@common/tools/gpu_check

deps:
	@common/tools/deps $(MODE)

clean:
	rm -rf build

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
