cmake_minimum_required(VERSION 3.25)

# The program as a user meets it: what it prints, where, and with which exit code.
function(expect code out err)
  execute_process(COMMAND ${PROGRAM} ${ARGN} RESULT_VARIABLE result
                  OUTPUT_VARIABLE printed ERROR_VARIABLE complained)
  list(JOIN ARGN " " words)
  if(NOT result STREQUAL "${code}")
    message(SEND_ERROR "longspan ${words}: exit code ${result}, expected ${code}\n"
                       "${printed}${complained}")
  endif()
  if(NOT printed MATCHES "${out}")
    message(SEND_ERROR "longspan ${words} printed:\n${printed}\nexpected: ${out}")
  endif()
  if(NOT complained MATCHES "${err}")
    message(SEND_ERROR "longspan ${words} complained:\n${complained}\nexpected: ${err}")
  endif()
endfunction()

# Every field of an object is there, with its type.
function(expect_fields what json)
  foreach(field IN LISTS ARGN)
    string(REPLACE ":" ";" parts ${field})
    list(GET parts 0 name)
    list(GET parts 1 type)
    string(JSON found TYPE "${json}" ${name})
    if(NOT found STREQUAL type)
      message(SEND_ERROR "${what}: ${name} is ${found}, expected ${type}")
    endif()
  endforeach()
endfunction()

expect(0 "^longspan 0\\.[0-9]+\\.[0-9]+\n$" "^$" --version)
expect(0 "list.*describe.*info.*check.*data" "^$" --help)
expect(0 "--json" "^$" list --help)
expect(0 "^name .*\ndense +optional +yes +yes " "^$" list)
expect(0 "^\\| name \\|.*\n\\| dense \\| optional \\|" "^$" list --markdown)
expect(0 "^dense: softmax.*paper.*1706.03762.*takes.*refuses.*settings" "^$" describe dense)
expect(0 "^longspan .*LibTorch .*CPU instruction set.*BLAS .*CUDA .*block attention" "^$" info)
expect(0 "dense on cpu\n  0  .* holds\n.*  9  .* holds\n$" "^$" check dense)

# Pictures are whole SVG files, the same ones every time.
set(drawn ${BUILD}/drawn)
file(REMOVE_RECURSE ${drawn})
file(MAKE_DIRECTORY ${drawn})
foreach(name IN ITEMS first second)
  expect(0 "^[^\n]*${name}.svg: who sees whom in dense, 9 tokens\n$" "^$"
         describe dense --picture ${drawn}/${name}.svg --tokens 9 --causal)
  file(READ ${drawn}/${name}.svg ${name})
endforeach()
if(NOT first MATCHES "^<svg .*dense, causal.*keys.*queries.*seen.*not seen.*</svg>\n$")
  message(SEND_ERROR "describe --picture drew:\n${first}")
endif()
if(NOT first STREQUAL second)
  message(SEND_ERROR "describe --picture drew two pictures of the same")
endif()
expect(0 "" "^$" describe dense --picture ${drawn}/first.svg --tokens 9)
file(READ ${drawn}/first.svg first)
if(NOT first MATCHES "dense, bidirectional" OR first MATCHES "not seen")
  message(SEND_ERROR "describe --picture drew:\n${first}")
endif()
file(REMOVE_RECURSE ${drawn})
expect(0 "^[^\n]*: [0-9]+ files\n$" "^$" describe --pages ${drawn}/pages)
foreach(name IN ITEMS README.md dense.md dense.svg dense-causal.svg)
  if(NOT EXISTS ${drawn}/pages/${name})
    message(SEND_ERROR "describe --pages wrote no ${name}")
  endif()
endforeach()

# As many threads as asked for, else as many as there are cores.
expect(0 "CPU threads +3\n" "^$" --threads 3 info)
unset(ENV{OMP_NUM_THREADS})
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_PHYSICAL_CORES)
execute_process(COMMAND nproc OUTPUT_VARIABLE usable OUTPUT_STRIP_TRAILING_WHITESPACE)
if(cores EQUAL usable)  # no hardware threads, no limits on this process
  expect(0 "CPU threads +${cores}\n" "^$" info)
endif()
set(ENV{OMP_NUM_THREADS} 1)
expect(0 "CPU threads +1\n" "^$" info)
unset(ENV{OMP_NUM_THREADS})

expect(2 "^$" "^longspan: a command is missing; see longspan --help\n$")
expect(2 "^$" "^longspan: no command 'lst'; did you mean 'list'\\?" lst)
expect(2 "^$" "^longspan: a command is missing; see longspan data --help\n$" data)
expect(2 "^$" "^longspan: no command 'lstops'; did you mean 'listops'\\?" data lstops)
expect(2 "^$" "^longspan: ListOps: max_args must be 2 or more" data listops --out x --max-args 1)
expect(2 "^$" "--out" data listops)

set(folder ${BUILD}/listops)
file(REMOVE_RECURSE ${folder})
set(few --train 12 --valid 3 --test 5 --min-length 20 --max-length 90)
expect(0 "basic_train.tsv: 12 examples.*outermost operator" "^$" data listops --out ${folder} ${few})
file(STRINGS ${folder}/basic_test.tsv lines)
list(LENGTH lines count)
if(NOT count EQUAL 6)
  message(SEND_ERROR "basic_test.tsv has ${count} lines, expected a header and 5")
endif()
file(READ ${folder}/basic_train.tsv before)
expect(1 "^$" "basic_train.tsv is there already; choose another folder, or --overwrite" data listops --out ${folder} ${few} --seed 2)
file(READ ${folder}/basic_train.tsv after)
if(NOT before STREQUAL after)
  message(SEND_ERROR "a refused command changed what was there")
endif()
expect(0 "" "^$" data listops --out ${folder} ${few} --overwrite)
file(READ ${folder}/basic_train.tsv after)
if(NOT before STREQUAL after)
  message(SEND_ERROR "one seed gave two data sets")
endif()

expect(2 "^$" "^longspan: no option --jsn; did you mean '--json'\\?" list --jsn)
expect(2 "^$" "^longspan: 'x' is one argument too many\n$" list x)
expect(2 "^$" "^longspan: no mechanism called 'dens'; did you mean 'dense'\\?" describe dens)
expect(2 "^$" "name" describe)
expect(2 "^$" "^longspan: --device must be cpu or cuda, got tpu\n$" check --device tpu)
expect(2 "^$" "threads.*1.*4096" --threads 0 list)
expect(2 "^$" "threads" --threads abc list)
expect(2 "^$" "^longspan: no option --foo" --foo list)
expect(2 "^$" "^longspan: no option --foo" data --foo listops --out x)
expect(0 "aclImdb_v1.tar.gz, MD5 7c2ac02c.*longspan train -c configs/lra/imdb" "^$" data imdb)
expect(0 "lra_release.gz.*new_aan_pairs" "^$" data retrieval)
expect(0 "cifar-10-binary.tar.gz, MD5 c32a1d4a" "^$" data cifar10)
expect(1 "^$" "^longspan: cannot read ${folder}/imdb_train.tsv: there is no such file there" data imdb --data ${folder})
expect(2 "^$" "^longspan: pathfinder: images are 32, 64, 128 or 256 pixels wide, got 33" data pathfinder --out x --size 33)
expect(2 "^$" "^longspan: --out is required" data pathfinder)
execute_process(COMMAND ${PROGRAM} data pathfinder --picture ${folder}/sheet.png
                OUTPUT_QUIET ERROR_VARIABLE complained)
if(NOT complained MATCHES "no libpng")
  set(few --out ${folder} --difficulty easy --count 3)
  expect(0 "pathfinder32/curv_baseline: 3 images" "^$" data pathfinder ${few})
  expect(1 "^$" "pathfinder32/curv_baseline is there already" data pathfinder ${few})
  foreach(file IN ITEMS sheet.png pathfinder32/curv_baseline/imgs/0/sample_2.png
          pathfinder32/curv_baseline/metadata/0.npy)
    if(NOT EXISTS ${folder}/${file})
      message(SEND_ERROR "there is no ${file}")
    endif()
  endforeach()
endif()

# Kernels are measured, and give what plain forms of the same give, else it fails.
expect(0 "Examples" "^$" bench kernels --help)
expect(2 "^$" "turns.*range 1 to" bench kernels --turns 0)
expect(2 "^$" "^longspan: --length must be a multiple of 64, got 100\n$" bench kernels --length 100)
expect(2 "^$" "^longspan: --only: no case has 'nonsense' in its name" bench kernels --only nonsense)
expect(2 "^$" "^longspan: --device must be cpu or cuda, got tpu\n$" bench kernels --device tpu)
set(tiny bench kernels --length 64 --turns 1 --threads 1)
expect(0 "case +reference .*ratio .*\nmerge 2 n 64 +memcpy .* 0.60 +0.75\n$" "^$" ${tiny} --only merge)
expect(0 "ratio .*\npool max of prefix n 64 +memcpy [^\n]*\n$" "^$" ${tiny} --all --only prefix)
execute_process(COMMAND ${PROGRAM} ${tiny} --only linear --json OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT lines MATCHES "^{[^\n]*best chunks[^\n]*}\n{[^\n]*recurrence\"[^\n]*}\n{[^\n]*in registers[^\n]*}\n$")
  message(SEND_ERROR "bench kernels --json printed:\n${lines}")
endif()
string(REGEX REPLACE "\n.*" "" line "${lines}")
expect_fields("bench kernels --json" "${line}" case:STRING reference:STRING ratio:NUMBER
              cpu_ratio:NUMBER must:NUMBER good:NUMBER seconds:NUMBER cpu_seconds:NUMBER
              reference_seconds:NUMBER reference_cpu_seconds:NUMBER useful_gflops:NUMBER
              executed_gflops:NULL peak_bytes:NUMBER threads:NUMBER isa:STRING)
execute_process(COMMAND ${PROGRAM} info OUTPUT_VARIABLE facts COMMAND_ERROR_IS_FATAL ANY)
if(facts MATCHES "CUDA +[0-9]+ device")
  expect(0 "block attention on CUDA.*wgmma.*SDPA.*LONGSPAN_TORCH_ATTENTION=0.*mma.sync" "^$" info)
  set(tiny bench kernels --device cuda --length 128 --turns 1)
  expect(0 "case +ms .*flash +cuDNN .*\ndense bf16 b 256 n 128 d 64 forward " "^$" ${tiny} --only dense)
  execute_process(COMMAND ${PROGRAM} ${tiny} --only "window 256 bf16" --json
                  OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\n.*" "" line "${lines}")
  expect_fields("bench kernels --device cuda --json" "${line}" case:STRING seconds:NUMBER
                useful_tflops:NUMBER gigabytes_per_second:NULL peak_bytes:NUMBER beside:OBJECT)
else()
  expect(2 "^$" "^longspan: --device cuda: this build or machine has no CUDA; see longspan info\n$"
         bench kernels --device cuda)
endif()

# Mechanisms are measured beside dense attention, length by length.
expect(0 "Examples" "^$" bench attention --help)
set(tiny bench attention --turns 1 --threads 1 --heads 2 --head-width 16)
expect(0 "^forward; batch 1, 2 heads of 16, float on cpu, 1 threads\n.*\nmechanism +tokens .*\ndense +32 .* 1.00 .*\ndense +64 [^\n]*\n  time grows as N.[-0-9.]+, memory as N.[0-9.]+; what the others are compared with\n$" "^$"
       ${tiny} --mechanisms dense --lengths 64,32,64)
expect(0 "^forward and backward, causal; batch 3, .*bfloat16.*\ndense +16 [^\n]*\n[^\n]*\ndense +16 [^\n]*\n[^\n]*\n$" "^$"
       ${tiny} --mechanisms "[dense, {name: dense}]" --lengths [16] --causal --backward
       --batch 3 --type bfloat16)
expect(0 "\ndense +32 +[0-9.]+ .*\ndense +64 +~[0-9.]+ +~[0-9.]+ +~[0-9.]+ +~1.00 +~1.00 +- +- +- +-\n  what" "^$"
       ${tiny} --mechanisms dense --lengths 32,64 --dense-until 32)
set(plot ${BUILD}/attention.svg)
file(REMOVE ${plot})
execute_process(COMMAND ${PROGRAM} ${tiny} --mechanisms dense --lengths 32,64,128 --dense-until 64
                        --json --plot ${plot}
                OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
if(NOT lines MATCHES "^({[^\n]*}\n)({[^\n]*}\n)({[^\n]*}\n)({[^\n]*}\n)$")
  message(SEND_ERROR "bench attention --json printed:\n${lines}")
endif()
set(rows "${CMAKE_MATCH_1};${CMAKE_MATCH_3};${CMAKE_MATCH_4}")
list(POP_FRONT rows measured extrapolated growth)
set(common mechanism:STRING settings:OBJECT seam:STRING causal:BOOLEAN backward:BOOLEAN
    batch:NUMBER heads:NUMBER head_width:NUMBER type:STRING device:STRING threads:NUMBER
    extrapolated:BOOLEAN)
set(times length:NUMBER seconds:NUMBER cpu_seconds:NUMBER dense_seconds:NUMBER
    dense_cpu_seconds:NUMBER ratio:NUMBER cpu_ratio:NUMBER)
expect_fields("bench attention --json" "${measured}" ${common} ${times} flops:NUMBER
              useful_gflops:NUMBER peak_bytes:NUMBER dense_peak_bytes:NUMBER)
expect_fields("bench attention --json" "${extrapolated}" ${common} ${times} flops:NULL
              useful_gflops:NULL peak_bytes:NULL dense_peak_bytes:NULL)
expect_fields("bench attention --json" "${growth}" ${common} time_exponent:NUMBER
              memory_exponent:NUMBER crossover:NULL faster:NULL)
file(READ ${plot} picture)
if(NOT picture MATCHES "^<svg .*>milliseconds</text>.*>128</text>.*\"hollow\".*>dense</text>.*</svg>\n$")
  message(SEND_ERROR "bench attention --plot drew:\n${picture}")
endif()

# In training ssa meets the keys it draws.
set(counts "")
foreach(how IN ITEMS --causal --backward)
  execute_process(COMMAND ${PROGRAM} ${tiny} --causal ${how} --mechanisms ssa --lengths 1024
                          --dense-until 64 --json
                  OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "\"flops\":([0-9]+)" found "${lines}")
  list(APPEND counts ${CMAKE_MATCH_1})
endforeach()
list(GET counts 0 all)
list(GET counts 1 sampled)
math(EXPR percent "100 * ${sampled} / ${all}")
if(percent LESS 20 OR percent GREATER 40)
  message(SEND_ERROR "bench attention --backward: ssa counts ${percent} % of what it does forward")
endif()

# Figures and tables of papers, beside what was printed.
expect(0 "combiner-figure3.*wide-table8.*lra" "^$" paper --help)
set(figure paper combiner-figure3 --lengths 32,64 --batch 1 --heads 2 --head-width 16 --span 16
    --turns 1 --threads 1)
expect(0 "^forward; batch 1, [^\n]*of 16 tokens\n.*\ndense [^\n]*\n.*\nMB beside .*\ntimes of the sparse pattern .*\ncombiner_fixed [^\n]* / sparse_fixed [^\n]*(within|beyond) 1.3\n" "^$"
       ${figure} --dense-until 32)
expect(0 "\nbigbird: has no causal form; leave out --causal\n$" "^$" ${figure} --causal)
execute_process(COMMAND ${PROGRAM} ${figure} --json OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "{[^\n]*\"combiner_logsparse\"[^\n]*}" line "${lines}")
expect_fields("paper combiner-figure3 --json" "${line}" mechanism:STRING sparse:STRING
              cells:ARRAY time_exponent:NUMBER memory_exponent:NUMBER most_ratio:NUMBER
              most_exponent:NUMBER)
string(JSON cell GET "${line}" cells 1)
expect_fields("paper combiner-figure3 --json" "${cell}" length:NUMBER seconds:NUMBER
              cpu_seconds:NUMBER peak_bytes:NUMBER ratio:NUMBER cpu_ratio:NUMBER)
expect(0 "\nmatching +Transformer +12.4 +13 +0.9[0-9] +7.9 +8 +0.9[0-9] [^\n]*\n4 of 4 sizes " "^$"
       paper wide-table8 --tasks matching --mechanisms Synthesizer,Transformer)
execute_process(COMMAND ${PROGRAM} paper wide-table8 --tasks imdb-byte --mechanisms Sinkhorn --json
                OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^{[^\n]*}" line "${lines}")
expect_fields("paper wide-table8 --json" "${line}" mechanism:STRING task:STRING shape:STRING
              layers:NUMBER heads:NUMBER unit:STRING ours:NUMBER published:NUMBER ratio:NUMBER)
# All models of the study are made, and measured where it is quick.
set(quick --tasks matching --mechanisms Linear --passes 1 --threads 1)
execute_process(COMMAND ${PROGRAM} paper wide-table9 ${quick} --json OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^{[^\n]*}" line "${lines}")
expect_fields("paper wide-table9 --json" "${line}" mechanism:STRING attention:STRING layers:NUMBER
              heads:NUMBER unit:STRING ours:NUMBER published:NULL device:STRING threads:NUMBER
              batch:NUMBER passes:NUMBER)
expect(0 "\nmatching +Linear .*\nwide is [0-9.]+ times as fast as deep in the mean of 1 pairs; printed: 1.9" "^$"
       paper wide-table10 ${quick} --device cpu --batch 2)

execute_process(COMMAND ${PROGRAM} paper lra --json OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^{[^\n]*}" line "${lines}")
expect_fields("paper lra --json" "${line}" mechanism:STRING task:STRING unit:STRING ours:NULL
              published:NUMBER runs:ARRAY)
expect(0 "^percent right, printed +ListOps +Text .*\ndense +36.37 +64.27 .* FAIL\n" "^$" paper lra)

# Runs as trainings leave them: those of the Arena's tasks stand beside its numbers, each
# model on a line of its own; others beside none.
set(lra ${folder}/lra)
file(REMOVE_RECURSE ${lra})
set(reviews "")
set(records "")
string(REPEAT "p" 1024 pixels)
foreach(i RANGE 1 10)
  string(APPEND reviews "0\t1\t${i}\ta bad film\n1\t9\t${i}\ta good film\n")
  string(APPEND records "\t${pixels}")  # a tabulator is label 9
endforeach()
foreach(part IN ITEMS train test)
  file(WRITE ${lra}/data/imdb_${part}.tsv "${reviews}")
endforeach()
foreach(part IN ITEMS data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch)
  file(WRITE ${lra}/data/${part}_gray.bin "${records}")
endforeach()
function(trained name)
  execute_process(COMMAND ${PROGRAM} train --out ${lra}/runs/${name} --quiet
                          --model.layers 1 --model.heads 2 --model.embedding 8 --model.inner 8
                          --model.attention linear --train.steps 1 --train.evaluate_every 1
                          --train.batch 2 --train.tensorboard false ${ARGN}
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()
set(text --task.name imdb --data ${lra}/data --task.longest 1000)
trained(text-1 ${text} --seed 1)
trained(text-2 ${text} --seed 2)
trained(wide ${text} --model.heads 4)
trained(short ${text} --task.longest 100)
trained(words ${text} --task.tokens words)
trained(image --task.name cifar10 --data ${lra}/data --task.judged 4)
set(easy --task.name pathfinder --task.difficulty easy --task.examples 4 --task.judged 4)
trained(easy ${easy})
trained(larger ${easy} --task.difficulty hard --task.size 64)
trained(curves ${easy} --task.difficulty hard)
trained(middling ${easy} --task.difficulty intermediate --model.attention dense)
expect(0 "\nText +linear +text +1 x 2 +2 +0.0 % .* 65.90 Long Range Arena" "^$" paper lra ${lra}/runs)
foreach(line IN ITEMS "\nText +linear +wide +1 x 4 +1 " "\nImage +linear +image .* 42.34 Long Range Arena "
        "\nPathfinder +linear +curves .* 75.30 Long Range Arena "
        "\nPathfinder, intermediate +dense +middling .* 88.81 Combiner "
        ": short, linear on Text, [^\n]*: of at most 100 tokens, where the published ones have 1000\n"
        ": words, linear on Text in words, [^\n]* %: no number is printed\n"
        ": easy, linear on pathfinder, [^\n]*: no paper here has numbers of the task pathfinder, easy, in 32 x 32\n"
        ": larger, linear on pathfinder, [^\n]* pathfinder, hard, in 64 x 64\n")
  expect(0 "${line}" "^$" paper lra ${lra}/runs)
endforeach()
execute_process(COMMAND ${PROGRAM} paper lra ${lra}/runs/image --json OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^{[^\n]*}" line "${lines}")
expect_fields("paper lra --json" "${line}" mechanism:STRING task:STRING ours:NUMBER published:NUMBER
              source:STRING shape:STRING examples:NUMBER budget:NUMBER runs:ARRAY ratio:NUMBER)
string(REGEX MATCHALL "\"ours\":null" empty "${lines}")
list(LENGTH empty count)
if(NOT count EQUAL 65)  # of 11 mechanisms and 6 tasks all but this one
  message(SEND_ERROR "paper lra --json has ${count} empty cells")
endif()

# Data is compared with the official files.
expect(0 "train: 45, .*60 in all, 60000 are in the official files\n" "^$" data cifar10 --data ${lra}/data)
file(WRITE ${lra}/data/test_batch.bin "${records}")
file(REMOVE ${lra}/data/test_batch_gray.bin)
expect(0 "test_batch.bin: not the official file\n" "^$" data cifar10 --data ${lra}/data)
file(WRITE ${lra}/data/test_d20s.tsv "")
foreach(i RANGE 1 20)
  file(APPEND ${lra}/data/test_d20s.tsv "9\t[MAX 1 9 ]\n")
endforeach()
expect(0 "train: 16, drawn from test_d20s.tsv.*20 in all, 100000 are in the official files\n" "^$"
       data listops --data ${lra}/data)
expect(2 "^$" "--out is required" data listops)

execute_process(COMMAND ${PROGRAM} list --json OUTPUT_VARIABLE json
                COMMAND_ERROR_IS_FATAL ANY)
string(JSON row GET "${json}" 0)
expect_fields("list --json" "${row}"
              name:STRING summary:STRING paper:STRING class:STRING time:OBJECT
              memory:OBJECT seam:STRING projections:STRING causal:STRING order:STRING
              padding:BOOLEAN cross:BOOLEAN causal_cross:BOOLEAN decoding:BOOLEAN
              positions:BOOLEAN bias:BOOLEAN segments:BOOLEAN global:BOOLEAN
              side:BOOLEAN carry:BOOLEAN dropout:BOOLEAN grouped:BOOLEAN state:STRING
              keeps:OBJECT full:BOOLEAN zero_weights:BOOLEAN by_content:BOOLEAN
              training:STRING settings:ARRAY presets:OBJECT)

# What has no causal form is not drawn causal.
string(JSON rows LENGTH "${json}")
math(EXPR last "${rows} - 1")
foreach(i RANGE ${last})
  string(JSON name GET "${json}" ${i} name)
  string(JSON causal GET "${json}" ${i} causal)
  if(causal STREQUAL "never")
    expect(2 "^$" "^longspan: ${name}: has no causal form; leave out --causal\n$"
           describe ${name} --picture ${drawn}/never.svg --causal)
    break()
  endif()
endforeach()
