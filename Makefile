# make help lists the targets; make check is what CI runs. Go and make are all
# that is needed: modules and tools come by themselves, tools into .tools/. Only the
# JavaScript client (make web, test-web, check) needs Node 20 and npm, too.

GO       ?= go
FUZZTIME ?= 10s
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

LINT_VERSION := v2.15.0
LINT         := .tools/golangci-lint-$(LINT_VERSION)

# The race detector needs cgo, and so a C compiler.
RACE := $(shell command -v $$($(GO) env CC) >/dev/null 2>&1 && echo -race)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run examples example-ticker example-chat example-llm example-python words build install release web test test-web test-web-full web-latency test-python test-websocket lint-api test-api deploy check clients check-long crash presence format vet lint scripts darwin modules fuzz bench compare peers scale abuse soak upgrade clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# These serve the pages of the folder PAGES, too, and allow exactly their origin.
PAGES         ?= deploy/examples
PAGES_ADDRESS ?= 127.0.0.1:8083

# What run keeps outlives the daemon. STORE= turns that off, and rm -r bin/store begins anew.
STORE ?= bin/store

# Nothing expires while somebody reads the README and tries its commands.
run: SERVE := --history-age=1h --session-inactivity-timeout=1h $(if $(STORE),--store=$(STORE))

run: ## build and serve on http://127.0.0.1:8080 (admin on :8081, pages on :8083), with a store in bin/store; STORE= is without; ARGS="--flag …" adds flags
example-ticker: ## run with a page of prices: one feed, and each reader chooses a rate
example-chat: ## run with a chat: rooms with rights, verified senders, presence, moderation
example-llm: ## run with the tokens of a simulated model
run example-ticker example-chat example-llm: build examples
	@exec bin/examples -listen=$(PAGES_ADDRESS) -folder=$(PAGES) -page=$(patsubst example-%,%.html,$(@:run=example-hello)) -- bin/pubsubd serve --log-format=console $(SERVE) $(ARGS)

examples: ## build bin/examples, the file server of run and the examples
	$(GO) build -trimpath -o bin/examples ./deploy/examples

BUILD = $(GO) build -trimpath -ldflags "-X main.version=$(VERSION)"

build: ## build bin/pubsubd
	$(BUILD) -o bin/pubsubd ./cmd/pubsubd

# Where install puts pubsubd. DESTDIR is for packages: it stands before all paths.
INSTALLED = $(DESTDIR)$(if $(PREFIX),$(PREFIX)/bin,$(or $(GOBIN),$(shell $(GO) env GOBIN),$(firstword $(subst :, ,$(shell $(GO) env GOPATH)))/bin))

install: ## install pubsubd into GOBIN, or with PREFIX=/usr/local into PREFIX/bin, with its manual pages
	$(BUILD) -o $(INSTALLED)/pubsubd ./cmd/pubsubd
	$(if $(PREFIX),$(INSTALLED)/pubsubd man $(DESTDIR)$(PREFIX)/share/man/man1)

release: .tools/release/installed ## make static binaries, their SBOMs and notices, the packages for npm and PyPI, the chart and checksums in dist/
	rm -rf dist
	VERSION=$(VERSION) deploy/release.sh dist
	@cat dist/SHA256SUMS

# Tests ask clients for Node that others wrote, at the versions that a lockfile pins.
NODE_CLIENTS := internal/daemon/testdata/node
NODE_INSTALLED := $(if $(shell command -v npm),$(NODE_CLIENTS)/node_modules/.package-lock.json)

# The JavaScript client, and the tools that build and test it.
WEB := pkg/pubsubjs
WEB_INSTALLED := $(WEB)/node_modules/.package-lock.json
NODE := $(shell node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && command -v npm)

# What depends on the browser: its page life, connections, garbage collection, tabs and answers that were cut.
IN_EACH_BROWSER := browser follow history outbox page react share

%/node_modules/.package-lock.json: %/package-lock.json
	@command -v npm >/dev/null || { echo "npm is not installed: install nodejs (20 or newer) and npm" >&2; exit 1; }
	cd $* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error

web: $(WEB_INSTALLED) ## build the JavaScript client into pkg/pubsubjs/dist, and print its size
	cd $(WEB) && node build.mjs

# Chromium runs all tests, other browsers what depends on the browser.
BROWSERS ?= chromium firefox webkit

test-web: $(if $(NODE),build examples $(WEB_INSTALLED)) ## test the JavaScript client and the examples in Node and in Chromium, and what depends on the browser in Firefox and WebKit; BROWSERS="webkit" chooses
ifeq ($(NODE),)
	@echo "no Node 20 with npm: the JavaScript client is not tested"; test -z "$$CI" || { echo "CI must have it: install Node 20 or newer, and npm" >&2; exit 1; }
else
	cd $(WEB) && set -e; for browser in $(BROWSERS); do \
		if [ $$browser = chromium ]; then tests="test/*.test.mjs"; else tests="$(IN_EACH_BROWSER:%=test/%.test.mjs)"; fi; \
		echo "in $$browser:"; BROWSER=$$browser node --test --test-reporter=spec --test-concurrency=1 $$tests; \
	done
endif

test-web-full: build $(WEB_INSTALLED) ## try each transport, way and fault in Chromium, Firefox and WebKit, and make 10,000 cuts in Node
	cd $(WEB) && for browser in chromium firefox webkit; do \
		BROWSER=$$browser FULL=1 node --test --test-reporter=spec test/browser.test.mjs || failed=1; \
	done; test -z "$$failed" && node test/cuts.mjs 10000

web-latency: build $(WEB_INSTALLED) ## measure the time from publish in one tab to the callback in another
	cd $(WEB) && node test/latency.mjs $(ARGS)

# Without this every race-enabled process, and most tests of cmd start some, ends a second late.
test: export GORACE ?= atexit_sleep_ms=50
# Tests have more memory than time: they collect garbage less often.
test: export GOGC ?= 400

# The tests in some files, as a pattern of go test.
TESTS_IN = $(shell grep -ho '^func Test[A-Za-z0-9]*' $(1) | cut -c 6- | paste -sd '|' -)

# The crash simulator is not built with the race detector, and allocations are counted without it.
NOT_RACED := ./internal/store ./internal/app ./internal/lane ./internal/session ./internal/transport ./internal/frame ./internal/memory ./pkg/wire/cbor

# These begin first. Tests wait more than they compute, so more of them run than there are cores; vet has a target.
LONGEST := ./internal/daemon ./internal/httpapi ./cmd/pubsubd

test: $(NODE_INSTALLED) ## run all tests, with the race detector if there is a C compiler; EXHAUSTIVE=1 tries all cases, as check-long does
ifeq ($(RACE),)
	@echo "no C compiler: testing without the race detector"; test -z "$$CI" || { echo "CI must have one: install gcc or clang" >&2; exit 1; }
endif
	$(GO) test $(RACE) $(TAGS) -vet=off -ldflags=-s -timeout 25m -p 4 -parallel 4 $(LONGEST) ./...
	$(GO) test -vet=off -run "$(call TESTS_IN,$(shell grep -l '^//go:build !race' internal/store/*_test.go))|Allocates|Account" $(NOT_RACED)

# Makes an environment for tools in Python, at the versions and hashes of a lock file.
define INSTALL_LOCKED
	@test -n "$(PYTHON)" || { echo "no Python 3.11 with venv: install python3 and python3-venv" >&2; exit 1; }
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@
endef

PYTHON_CLIENT := pkg/pubsubpy
PYTHON_TOOLS  := .tools/python
PYTHON        := $(shell python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo python3)

INSTALL_PYTHON_CLIENT = $(PYTHON_TOOLS)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation ./$(PYTHON_CLIENT)

$(PYTHON_TOOLS)/installed: $(PYTHON_CLIENT)/requirements.lock
	$(INSTALL_LOCKED)

test-python: $(if $(PYTHON),build $(PYTHON_TOOLS)/installed) ## check the types of the Python client and run its tests; EXHAUSTIVE=1 makes 2,000 cuts
ifeq ($(PYTHON),)
	@echo "no Python 3.11 with venv: the Python client is not tested"; test -z "$$CI" || { echo "CI must have it: install python3 and python3-venv" >&2; exit 1; }
else
	$(INSTALL_PYTHON_CLIENT)
	cd $(PYTHON_CLIENT) && $(CURDIR)/$(PYTHON_TOOLS)/bin/mypy --cache-dir=$(CURDIR)/$(PYTHON_TOOLS)/mypy src tests
	cd $(PYTHON_CLIENT) && PYTHONDONTWRITEBYTECODE=1 $(CURDIR)/$(PYTHON_TOOLS)/bin/pytest -rP -k cut_connections
	cd $(PYTHON_CLIENT) && PYTHONDONTWRITEBYTECODE=1 $(CURDIR)/$(PYTHON_TOOLS)/bin/pytest -k "not cut_connections"
endif

example-python: build $(PYTHON_TOOLS)/installed ## run a worker that publishes, and a script that follows, until the job is done
	$(INSTALL_PYTHON_CLIENT)
	@PYTHON=$(CURDIR)/$(PYTHON_TOOLS)/bin/python deploy/examples/python/run.sh

# Other tools in Python have an environment each, with what a lock file in deploy/checks lists.
.tools/%/installed: deploy/checks/%.lock
	$(INSTALL_LOCKED)

FILES ?= $(shell git ls-files '*.md')

words: ## find sentences in the documents that are hard to read; FILES="README.md" chooses, ARGS="--update --bounds deploy/checks/words.txt" allows what there is
ifeq ($(PYTHON),)
	@echo "no Python 3.11: the documents are not searched"; test -z "$$CI" || { echo "CI must have it: install python3" >&2; exit 1; }
else
	@$(PYTHON) -m doctest deploy/checks/words.py
	@$(PYTHON) deploy/checks/words.py $(BOUNDS) $(ARGS) $(FILES)
endif

# How many messages a case of test-websocket sends; Autobahn itself sends 1000.
MESSAGES ?= 20

test-websocket: $(if $(PYTHON),build .tools/websocket/installed) ## run Autobahn's cases against the daemon's WebSockets, with MESSAGES (20) messages a case
ifeq ($(PYTHON),)
	@echo "no Python 3.11 with venv: Autobahn's cases are not run"; test -z "$$CI" || { echo "CI must have it: install python3 and python3-venv" >&2; exit 1; }
else
	.tools/websocket/bin/python deploy/checks/websocket.py --messages $(MESSAGES) bin/pubsubd
endif

# The OpenAPI documents have a linter and a tester that others wrote.
REDOCLY := deploy/checks/testdata/redocly

lint-api: $(if $(NODE),$(REDOCLY)/node_modules/.package-lock.json) ## lint the OpenAPI documents by redocly
ifeq ($(NODE),)
	@echo "no Node 20 with npm: the OpenAPI documents are not linted"; test -z "$$CI" || { echo "CI must have it: install Node 20 or newer, and npm" >&2; exit 1; }
else
	cd $(REDOCLY) && REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true node_modules/.bin/redocly lint
endif

test-api: build .tools/schemathesis/installed ## ask both listeners what openapi.yaml permits and forbids, by schemathesis; ARGS="--seed 1" repeats a run
	.tools/schemathesis/bin/python deploy/checks/schemathesis/run.py bin/pubsubd $(ARGS)

scripts: $(if $(PYTHON),.tools/scripts/installed) ## run shellcheck on the shell scripts, and hadolint on the Dockerfile
ifeq ($(PYTHON),)
	@echo "no Python 3.11 with venv: the scripts are not checked"; test -z "$$CI" || { echo "CI must have it: install python3 and python3-venv" >&2; exit 1; }
else
	.tools/scripts/bin/shellcheck .ci/run $(shell git ls-files '*.sh')
	.tools/scripts/bin/hadolint deploy/Dockerfile
endif

deploy: $(LINT) $(if $(PYTHON),.tools/release/installed) ## try the image, a release, and an installation; in a module of their own, the rules, the dashboard and the chart in deploy/, and HTTP/2 by h2spec
	$(GO) test -count=1 -tags packaging ./deploy
	cd deploy/checks && $(CURDIR)/$(LINT) run ./...
	cd deploy/checks && $(GO) test -count=1 ./... # what they read is outside of their module, which the cache does not see

# Of what EXHAUSTIVE=1 tries, check tries every fifth case, and check-long all. Loops inside of each other go 2, 3 or 4 cases
# at a time, too: with a divisor in common, the inner one would never reach most of its cases.
EVERY := 5

check: export EXHAUSTIVE = $(EVERY)
check: export TAGS = -tags=long
check: BOUNDS = --bounds deploy/checks/words.txt
check: format vet lint lint-api scripts words build darwin modules test test-websocket clients ## all that must hold before a merge; CI runs this

# The tests of the clients wait more than they compute, so two rows of them run at a time.
clients: build examples $(if $(NODE),$(WEB_INSTALLED))
	$(MAKE) test-web BROWSERS="chromium firefox" & row=$$!; $(MAKE) test-python deploy test-web BROWSERS=webkit; other=$$?; wait $$row && exit $$other

# What finds rare faults. Each target can be run alone, and longer.
check-long: EVERY = 1
check-long: export EXHAUSTIVE = $(EVERY)
check-long: CRASH_SEEDS = 20000
check-long: FUZZTIME = 1m
check-long: MESSAGES = 1000
check-long: check test-api crash presence fuzz soak upgrade abuse test-web-full ## check with all of Autobahn's messages, 20,000 seeds of crashes, the truth of presence, each fuzz target for a minute, what openapi.yaml permits and forbids, soaks, upgrades, attacks, the whole matrix of browsers; some hours

CRASH_SEEDS ?= 100000

crash: ## simulate crashes of the write-ahead log with CRASH_SEEDS (100,000) seeds, on all cores; CRASH_SEED=n prints one
	CRASH_SEEDS=$(CRASH_SEEDS) $(GO) test -count=1 -timeout 12h -v -run TestACrashBreaksNoPromise ./internal/store

PRESENCE_SECONDS ?= 600

presence: ## cut the connections of 10,000 members for PRESENCE_SECONDS (600) of fake time, and compare the lists with the truth
	PRESENCE_SECONDS=$(PRESENCE_SECONDS) $(GO) test -count=1 -timeout 1h -v -run TestTheListIsTheTruth ./internal/presence

format: ## fail if a file is not formatted as gofmt does
	@unformatted=$$($$($(GO) env GOROOT)/bin/gofmt -l .) && test -z "$$unformatted" || { echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; }

vet: ## go vet
	$(GO) vet ./...

lint: $(LINT) ## run the linters of .golangci.yml
	$(LINT) run ./...

$(LINT):
	@echo "building golangci-lint $(LINT_VERSION): about 90 s, once"
	GOBIN=$(CURDIR)/.tools $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv .tools/golangci-lint $@

darwin: ## build for macOS, where developers are
	GOOS=darwin $(GO) build ./...

modules: ## fail if go.mod or go.sum is out of date, or a module was tampered with
	$(GO) mod tidy -diff
	$(GO) mod verify

fuzz: ## run each fuzz target for FUZZTIME (10s)
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd internal pkg loadtest | xargs -n 1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$dir/*_test.go | cut -c 6-); do \
			echo "$$dir $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x ./$$dir; \
		done; \
	done

bench: ## run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

compare: build ## measure pubsubd against the floor and other servers, about 50 min; ARGS="-resume" goes on
	$(GO) run ./loadtest/compare $(ARGS)

peers: ## get the servers for make compare: Nchan from Debian, Centrifugo and Mercure into .tools/
	GO=$(GO) loadtest/compare/peers.sh

scale: build ## measure how cost grows with clients, topics, bytes …, into loadtest/results, about 10 min; ARGS="-quick": 1 min, into bin/
	$(GO) run ./loadtest/scale -pubsubd bin/pubsubd $(ARGS)

abuse: build ## attack pubsubd in twenty-four ways while 2000 clients listen, into loadtest/results, about 15 min; ARGS="-quick": 4 min, into bin/
	$(GO) run ./loadtest/abuse -pubsubd bin/pubsubd $(ARGS)

SOAK ?= 10m

soak: build ## cut, delay and restart for SOAK (10m) each, without and with the log, and look for a broken promise
	bin/pubsubd loadtest soak --duration $(SOAK) --seed 7
	bin/pubsubd loadtest soak --duration $(SOAK) --seed 7 --store

upgrade: ## replace the binary five times under load, with 5,000 subscribers, in each way of deploy/README.md, about 1 min
	UPGRADE_CLIENTS=5000 $(GO) test -count=1 -timeout 25m -v -run TestUpgradesRefuseNobody ./cmd/pubsubd

clean: ## remove what was built, tools too
	rm -rf bin dist .tools
