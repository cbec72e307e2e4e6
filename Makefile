# `make demo` and `make test` do everything on a fresh Debian machine, the packages
# included, and share one build in build/release. LONGSPAN_TORCH=DIR takes another
# LibTorch than Debian's.

longspan = build/release/longspan

.PHONY: demo test configure packages

# Makes data, trains ten small models on it side by side for little more than a minute, and
# writes a report of them.
demo: configure
	cmake --build --preset release --target longspan_program
	rm -rf build/demo
	$(longspan) data listops --out build/demo/listops --train 60000 --valid 1000 --test 2000 \
	  --min-length 10 --max-length 60
	$(longspan) arena -c configs/demo.yaml -c configs/demo-arena.yaml --data build/demo/listops \
	  --out build/demo/arena
	$(longspan) explain build/demo/arena/dense-wide/seed-1 "[MAX 2 9 [MIN 4 7 ] 0 ]" \
	  --out build/demo/arena/explained.html

test: configure
	cmake --build --preset release
	ctest --preset release

configure: packages
	cmake --preset release

packages:
	tools/install-packages
