# `make demo` and `make test` do everything on a fresh Debian machine, the packages
# included, and share one build in build/release. LONGSPAN_TORCH=DIR takes another
# LibTorch than Debian's.

longspan = build/release/longspan

.PHONY: demo test configure packages

# Makes data, trains on it for little more than a minute, and judges the best of the training.
demo: configure
	cmake --build --preset release --target longspan_program
	rm -rf build/demo
	$(longspan) data listops --out build/demo/listops --train 90000 --valid 1000 --test 2000 \
	  --min-length 10 --max-length 60
	$(longspan) train -c configs/demo.yaml --data build/demo/listops --out build/demo/run
	$(longspan) eval build/demo/run

test: configure
	cmake --build --preset release
	ctest --preset release

configure: packages
	cmake --preset release

packages:
	tools/install-packages
