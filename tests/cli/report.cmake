cmake_minimum_required(VERSION 3.25)

# A small arena as a user has it, trained by several processes, with its report; and the
# words that one of its models looks at. cli/browser opens the pages.
set(folder ${BUILD}/report)
file(REMOVE_RECURSE ${folder})
file(MAKE_DIRECTORY ${folder})

# Runs a command in the folder; its exit code and output must fit. Sets `printed`.
function(expect code pattern)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${folder} RESULT_VARIABLE result
                  OUTPUT_VARIABLE out ERROR_VARIABLE complained)
  list(JOIN ARGN " " words)
  if(NOT result STREQUAL code)
    message(SEND_ERROR "${words}: exit code ${result}, expected ${code}\n${out}${complained}")
  endif()
  if(NOT "${out}${complained}" MATCHES "${pattern}")
    message(SEND_ERROR "${words} printed:\n${out}${complained}\nexpected: ${pattern}")
  endif()
  set(printed "${out}" PARENT_SCOPE)
endfunction()

function(expect_text file)
  file(READ ${folder}/${file} text)
  foreach(pattern IN LISTS ARGN)
    if(NOT text MATCHES "${pattern}")
      message(SEND_ERROR "${file} has no ${pattern}")
    endif()
  endforeach()
endfunction()

expect(0 "" ${PROGRAM} data listops --out listops --train 300 --valid 40 --test 60
       --min-length 10 --max-length 40)
set(common ${PROGRAM} arena --data listops --model.embedding 16 --model.inner 16
    --model.head_width 8 --train.batch 16 --train.steps 12 --train.evaluate_every 6
    --train.log_every 2 --train.tensorboard false --arena.latency_passes 3)
set(arena ${common} --out arena
    --arena.entries "[{name: dense deep, model.layers: 2, model.heads: 1}, {name: dense wide, model.layers: 1, model.heads: 2}, {name: linear, model.attention: linear, model.layers: 1, model.heads: 2}, {name: broken, model.attention: {name: local, block: 0}}]"
    --arena.seeds "[1, 2]")

# Two at once, and what cannot be is told with the reason.
set(table "\\| dense deep +\\|.*\\| linear +\\|.*no result: broken, seed 2: local: block must be 1 or more")
expect(0 "${table}" ${arena} --arena.processes 2 --threads 2)
foreach(file IN ITEMS arena.json arena.yaml report.html report.md report.csv dense-deep/latency.json
        dense-deep/seed-2/environment.json)
  if(NOT EXISTS ${folder}/arena/${file})
    message(SEND_ERROR "the arena left no ${file}")
  endif()
endforeach()
file(GLOB left ${folder}/arena/*/*.errors)
if(left)
  message(SEND_ERROR "the arena left ${left}")
endif()

# The number of processes changes nothing; what is trained is not trained again.
file(READ ${folder}/arena/arena.json first)
expect(0 "${table}" ${arena} --quiet)
file(READ ${folder}/arena/arena.json again)
if(NOT first STREQUAL again)
  message(SEND_ERROR "an arena that was trained gave other results when read again:\n${again}")
endif()
file(SHA256 ${folder}/arena/linear/seed-1/best/model.safetensors before)
file(REMOVE_RECURSE ${folder}/arena/linear/seed-1)
expect(0 "" ${arena} --quiet)
file(SHA256 ${folder}/arena/linear/seed-1/best/model.safetensors after)
if(NOT before STREQUAL after)
  message(SEND_ERROR "a training in a process of its own gave other weights")
endif()

expect_text(arena/report.html "<title>4 models on listops</title>" "id=\"accuracy-against-speed\""
            "id=\"wide-against-deep\"" "id=\"who-sees-whom\"" "id=\"published-numbers\""
            "broken, seed 1: local" "instruction set" "data-number="
            "Tokens/s are of 2 trainings at once, with 1 thread each"
            "the mean ± standard deviation of 3 passes")
expect_text(arena/report.md "## Wide against deep\n\n\\| mechanism" "Long Range Arena")
file(STRINGS ${folder}/arena/report.csv lines)
list(LENGTH lines count)
if(NOT count EQUAL 9)  # a title and four entries with two seeds
  message(SEND_ERROR "report.csv has ${count} lines")
endif()

# Results of other options are not passed off as those of the given ones.
file(COPY ${folder}/arena/ DESTINATION ${folder}/changed)
expect(1 "^longspan: linear, seed 1: changed/linear/seed-1: the run was begun with model.attention linear, so it cannot go on with dense"
       ${common} --out changed --quiet --arena.entries
       "[{name: linear, model.attention: dense, model.layers: 1, model.heads: 2}]")

# Killed, an arena tells how far it is; given its folder alone, it goes on.
execute_process(COMMAND sh -c "\"$@\" & arena=$!
for i in $(seq 300); do test -s killed/b/seed-1/metrics.jsonl && break; sleep 0.1; done
kill -KILL $arena" sh ${common} --out killed --train.steps 1000000 --arena.processes 2 --threads 2
--arena.seeds "[1]" --arena.entries "[{name: a, model.layers: 1, model.heads: 2}, {name: b, model.attention: linear, model.layers: 1, model.heads: 2}, {name: c, model.layers: 2, model.heads: 1}]"
                WORKING_DIRECTORY ${folder} OUTPUT_QUIET ERROR_QUIET)
expect(0 "- b, seed 1: not at its end, but at step [0-9]+\n- c, seed 1: not trained yet"
       ${PROGRAM} report killed)
expect(0 "\\| a +\\|.*\\| c +\\|" ${PROGRAM} arena --out killed --train.steps 12)

expect(0 "^# seed-1 on listops\n.*\\| seed-1 +\\|" ${PROGRAM} report arena/linear/seed-1)
expect(0 "^some.html\nsome.csv\n$" ${PROGRAM} report arena/linear/seed-1
       arena/dense-wide/seed-1 --title "Two & <more>" --out some.html --out some.csv)
expect_text(some.html "<title>Two &amp. &lt.more&gt.</title>")
expect(2 "must end in .html, .md or .csv, got x.pdf" ${PROGRAM} report arena --out x.pdf)
expect(1 "listops is no run and no arena" ${PROGRAM} report listops)

# Deep, wide, and one that reads the mean.
expect(0 "^deep.html\n$" ${PROGRAM} explain arena/dense-deep/seed-1
       "[MAX 2 9 [MIN 4 7 ] 0 ]" "[MED 1 2 3 ]" --out deep.html)
expect_text(deep.html "Text 1: " "Text 2: " "through all layers" "layer 1: dense"
            ">.MAX</i>" "head 0")
expect(0 "^wide.json\n$" ${PROGRAM} explain arena/dense-wide/seed-1
       "[MAX 2 9 [MIN 4 7 ] 0 ]" --out wide.json)
file(READ ${folder}/wide.json json)
string(JSON words LENGTH "${json}" 0 words)
string(JSON heads LENGTH "${json}" 0 layers 0 heads)
string(JSON first GET "${json}" 0 words 0)
if(NOT words EQUAL 9 OR NOT heads EQUAL 2 OR NOT first STREQUAL "[MAX")
  message(SEND_ERROR "wide.json has ${words} words from ${first} on, and ${heads} heads")
endif()
expect(0 "" ${PROGRAM} explain arena/linear/seed-1 "[SM 2 9 ]" --out linear.json)
expect(2 "must end in .html or .json, got x.svg" ${PROGRAM} explain arena/linear/seed-1
       "[SM 2 9 ]" --out x.svg)

# What is read from a memory is no word's share.
set(tiny --model.embedding 16 --model.heads 4 --model.inner 16 --model.layers 1 --train.batch 8
    --train.steps 2 --train.evaluate_every 2 --quiet)
expect(0 "" ${PROGRAM} train --data listops ${tiny} --model.attention grc --out cached)
expect(0 "" ${PROGRAM} explain cached "[SM 2 9 ]" --out cached.json)
file(READ ${folder}/cached.json json)
string(JSON share GET "${json}" 0 layers 0 heads 3 memory)
if(NOT share GREATER 0.4 OR NOT share LESS 0.6)
  message(SEND_ERROR "of head 3 ${share} is memory, which is one half at first")
endif()
expect(0 "" ${PROGRAM} explain cached "[SM 2 9 ]" --out cached.html)
expect_text(cached.html "% memory" "id=\"memory\"" "sigmoid.lambda.")

# Both texts of a pair.
set(pairs "")
foreach(i RANGE 1 20)
  string(APPEND pairs "1.0\ta${i}\tb${i}\taa aa ${i}\taa aa ${i} aa\n")
  string(APPEND pairs "0.0\ta${i}\tc${i}\taa aa ${i}\tzz zz zz zz\n")
endforeach()
foreach(part IN ITEMS train eval test)
  file(WRITE ${folder}/papers/tsv_data/new_aan_pairs.${part}.tsv "${pairs}")
endforeach()
expect(0 "" ${PROGRAM} train --task.name retrieval --task.longest 20 --data papers
       --model.head concatenation ${tiny} --out pairs)
expect(0 "" ${PROGRAM} explain pairs "first words\tof two" --out pairs.html)
expect_text(pairs.html "Text 1, the first of a pair" "Text 2, the second of a pair" ">first</i>"
            ">two</i>")

# Texts of bytes: their words.
set(rows "text\tlabel\n")
foreach(i RANGE 1 30)
  string(APPEND rows "a good <b>text</b> & more, number ${i}\tgood\na bad one, ${i}\tbad\n")
endforeach()
file(WRITE ${folder}/films.tsv "${rows}")
foreach(tokens IN ITEMS bytes words)
  expect(0 "" ${PROGRAM} train --task.name classify --task.train films.tsv --task.tokens
         ${tokens} --task.longest 40 --model.layers 1 --model.embedding 16 --model.inner 16
         --model.heads 4 --model.pooling mean --train.batch 8 --train.steps 4
         --train.evaluate_every 2 --out films-${tokens} --quiet)
  expect(0 "" ${PROGRAM} explain films-${tokens} "a GOOD <b>text</b> unheard of" --out
         films-${tokens}.html)
endforeach()
expect_text(films-bytes.html "&lt.b&gt.text&lt./b&gt." "unheard")
expect_text(films-words.html ">GOOD</i>" "unheard")

# Runs of two tasks have tables of their own.
expect(0 "## listops: Results\n.*## classify: Results\n" ${PROGRAM} report arena/linear/seed-1
       films-bytes)

# A crowd of entries, nearly alike.
file(READ ${folder}/arena/linear/seed-1/config.yaml config)
file(READ ${folder}/arena/linear/seed-1/result.json result)
set(crowd "")
foreach(i RANGE 1 12)
  set(run "crowd/an entry with a rather long name ${i}")
  file(COPY ${folder}/arena/linear/seed-1/metrics.jsonl DESTINATION "${folder}/${run}")
  string(REPLACE "batch: 16" "batch: ${i}" own "${config}")
  file(WRITE "${folder}/${run}/config.yaml" "${own}")
  string(JSON own SET "${result}" best test accuracy 0.3${i})
  file(WRITE "${folder}/${run}/result.json" "${own}")
  list(APPEND crowd "${run}")
endforeach()
expect(0 "" ${PROGRAM} report ${crowd} --out crowd.html)
