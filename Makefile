# `make demo` and `make test` do everything on a fresh Debian machine, the packages
# included, and share one build in build/release. LONGSPAN_TORCH=DIR takes another
# LibTorch than Debian's.

.PHONY: demo test configure packages

demo: configure
	cmake --build --preset release --target longspan_program
	build/release/longspan list
	build/release/longspan check

test: configure
	cmake --build --preset release
	ctest --preset release

configure: packages
	cmake --preset release

packages:
	tools/install-packages
