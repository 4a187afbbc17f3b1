# Installs kmem: the command, the libraries for programs in C and C++, and what describes them to
# pkg-config and CMake.
#
#	make                           builds, with cargo
#	make install PREFIX=/usr       places the files; DESTDIR is put before every path
#	make uninstall PREFIX=/usr     removes exactly these files
#
# Variables: PREFIX, DESTDIR, BINDIR, LIBDIR, INCLUDEDIR, DATADIR, CARGO, CARGOFLAGS.
export PREFIX ?= /usr/local
export BINDIR ?= $(PREFIX)/bin
export LIBDIR ?= $(PREFIX)/lib
export INCLUDEDIR ?= $(PREFIX)/include
export DATADIR ?= $(PREFIX)/share
export DESTDIR
CARGO ?= cargo
CARGOFLAGS ?= --locked

# The first version in Cargo.toml is that of the workspace.
export VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)
# Programs that were linked with one version of the interface run with all that share its number.
# Before 1.0, each minor version may change it.
parts := $(subst ., ,$(VERSION))
export INTERFACE := $(if $(filter 0,$(firstword $(parts))),0.$(word 2,$(parts)),$(firstword $(parts)))
export TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: all install uninstall interface

# The command apart, with the dependencies that `cargo install` builds. libkmem.so is one of them.
# Built by its name, it would have other features and replace the first one, and the next build would
# link the command again. The archive has a directory of its own: cargo builds one kind of library
# of a crate at a time.
all:
	KMEM_INTERFACE=$(INTERFACE) $(CARGO) build $(CARGOFLAGS) --profile dist -p kmem-cli
	KMEM_INTERFACE=$(INTERFACE) $(CARGO) build $(CARGOFLAGS) --profile dist -p kmem-module-c
	$(CARGO) rustc $(CARGOFLAGS) --profile dist -p kmem-preload --lib --crate-type staticlib \
	  --target-dir $(TARGET)/archive

# Builds nothing, so that a superuser needs no cargo.
install:
	packaging/install.sh

uninstall:
	packaging/uninstall.sh

# Prints the number of the interface.
interface:
	@echo $(INTERFACE)
