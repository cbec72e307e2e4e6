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
expect(0 "^name .*\ndense  optional  yes    yes " "^$" list)
expect(0 "^\\| name \\|.*\n\\| dense \\| optional \\|" "^$" list --markdown)
expect(0 "^dense: softmax.*paper.*1706.03762.*takes.*refuses.*settings" "^$" describe dense)
expect(0 "^longspan .*LibTorch .*CPU instruction set.*BLAS .*CUDA .*block attention" "^$" info)
expect(0 "dense on cpu\n  0  .* holds\n.*  9  .* holds\n$" "^$" check dense)

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

# Kernels are measured, and give what plain forms of the same give, else it fails.
expect(0 "Examples" "^$" bench kernels --help)
expect(2 "^$" "turns.*range 1 to" bench kernels --turns 0)
expect(2 "^$" "^longspan: --length must be a multiple of 64, got 100\n$" bench kernels --length 100)
expect(2 "^$" "^longspan: --only: no case has 'nonsense' in its name" bench kernels --only nonsense)
set(tiny bench kernels --length 64 --turns 1 --threads 1)
expect(0 "case +reference .*ratio .*\nmerge 2 n 64 +memcpy .* 0.60 +0.75\n$" "^$" ${tiny} --only merge)
expect(0 "ratio .*\npool max of prefix n 64 +memcpy [^\n]*\n$" "^$" ${tiny} --all --only prefix)
execute_process(COMMAND ${PROGRAM} ${tiny} --only linear --json OUTPUT_VARIABLE lines
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT lines MATCHES "^{[^\n]*best chunks[^\n]*}\n{[^\n]*recurrence[^\n]*}\n$")
  message(SEND_ERROR "bench kernels --json printed:\n${lines}")
endif()
string(REGEX REPLACE "\n.*" "" line "${lines}")
expect_fields("bench kernels --json" "${line}" case:STRING reference:STRING ratio:NUMBER
              cpu_ratio:NUMBER must:NUMBER good:NUMBER seconds:NUMBER cpu_seconds:NUMBER
              reference_seconds:NUMBER reference_cpu_seconds:NUMBER useful_gflops:NUMBER
              executed_gflops:NULL peak_bytes:NUMBER threads:NUMBER isa:STRING)

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
