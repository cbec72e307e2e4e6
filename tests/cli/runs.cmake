cmake_minimum_required(VERSION 3.25)

# Runs as a user has them: trained, killed, resumed, judged, used.
set(folder ${BUILD}/runs)
file(REMOVE_RECURSE ${folder})
file(MAKE_DIRECTORY ${folder})

# Runs a command in the folder; its exit code and output must fit. Sets `printed`.
function(expect code pattern)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${folder} RESULT_VARIABLE result
                  OUTPUT_VARIABLE out ERROR_VARIABLE complained)
  list(JOIN ARGN " " words)
  if(NOT result MATCHES "^(${code})$")
    message(SEND_ERROR "${words}: exit code ${result}, expected ${code}\n${out}${complained}")
  endif()
  if(NOT "${out}${complained}" MATCHES "${pattern}")
    message(SEND_ERROR "${words} printed:\n${out}${complained}\nexpected: ${pattern}")
  endif()
  set(printed "${out}" PARENT_SCOPE)
  set(exit_code "${result}" PARENT_SCOPE)
endfunction()

# The last checkpoints of two runs are the same bit for bit.
function(expect_equal_runs step first second)
  foreach(part IN ITEMS model.safetensors optimizer.safetensors)
    foreach(run IN ITEMS ${first} ${second})
      file(SHA256 ${folder}/${run}/checkpoints/step-${step}/${part} sum_${run})
    endforeach()
    if(NOT sum_${first} STREQUAL sum_${second})
      message(SEND_ERROR "${first} and ${second} differ in ${part} of step ${step}")
    endif()
  endforeach()
endfunction()

function(expect_files)
  foreach(file IN LISTS ARGN)
    if(NOT EXISTS ${folder}/${file})
      message(SEND_ERROR "there is no ${file}")
    endif()
  endforeach()
endfunction()

expect(0 "" ${PROGRAM} data listops --out listops --train 400 --valid 40 --test 60
       --min-length 10 --max-length 60)
set(small --data listops --model.layers 1 --model.embedding 32 --model.heads 2 --model.inner 48
    --model.attention_dropout 0.1 --train.batch 12 --train.micro_batch 5
    --train.evaluate_every 10 --train.average ema --quiet)
set(train ${PROGRAM} train ${small} --train.steps 40)

# A run, and what is left of it.
expect(0 "right on the test set.*outermost operator" ${train} --out whole)
expect_files(whole/config.yaml whole/metrics.jsonl whole/log.txt whole/result.json
             whole/best/model.safetensors whole/checkpoints/step-40/DONE)
file(GLOB events ${folder}/whole/events.out.tfevents.*)
if(NOT events)
  message(SEND_ERROR "there is no event file")
endif()
file(STRINGS ${folder}/whole/metrics.jsonl lines)
list(GET lines 0 line)
foreach(key IN ITEMS step event loss accuracy learning_rate gradient_norm tokens_per_second
        peak_bytes flops epoch seconds)
  string(JSON value ERROR_VARIABLE error GET "${line}" ${key})
  if(error)
    message(SEND_ERROR "metrics.jsonl: ${key}: ${error}")
  endif()
endforeach()
list(GET lines -1 line)
string(JSON tested GET "${line}" accuracy)
expect(0 "" ${PROGRAM} eval whole --json)
string(JSON judged GET "${printed}" accuracy)
if(NOT judged EQUAL tested)
  message(SEND_ERROR "training tested ${tested}, but eval says ${judged}")
endif()

# Any number of threads gives the same weights; another seed others.
foreach(threads IN ITEMS 1 2 3)
  expect(0 "" ${train} --out threads${threads} --threads ${threads})
  expect_equal_runs(40 whole threads${threads})
endforeach()
expect(0 "" ${train} --out other --seed 2)
file(SHA256 ${folder}/whole/checkpoints/step-40/model.safetensors sum)
file(SHA256 ${folder}/other/checkpoints/step-40/model.safetensors other)
if(sum STREQUAL other)
  message(SEND_ERROR "another seed gave the same weights")
endif()

# Killed again and again, each time later, and gone on with.
set(survivor ${train} --out killed --resume auto --train.save_every 3)
set(kills 0)
foreach(seconds IN ITEMS 0.30 0.45 0.60 0.75 0.90 1.05)
  expect("0|137|Subprocess killed" "" timeout -s KILL ${seconds} ${survivor})
  if(NOT exit_code STREQUAL 0)
    math(EXPR kills "${kills} + 1")
  endif()
endforeach()
if(kills EQUAL 0)
  message(SEND_ERROR "no run was killed: the test tests nothing")
endif()
expect(0 "" ${survivor})
expect_equal_runs(40 whole killed)

# Asked to stop: saved, and gone on with.
expect(143 "" timeout --preserve-status -s TERM 1.5 ${PROGRAM} train ${small} --out stopped
       --train.steps 100000)
file(GLOB saved ${folder}/stopped/checkpoints/step-*/DONE)
if(NOT saved)
  message(SEND_ERROR "a stopped run saved nothing")
endif()
file(READ ${folder}/stopped/log.txt log)
if(NOT log MATCHES "a signal came")
  message(SEND_ERROR "the log of a stopped run: ${log}")
endif()

# What was told before a kill is told once.
file(STRINGS ${folder}/killed/metrics.jsonl lines)
set(steps "")
foreach(line IN LISTS lines)
  string(JSON step GET "${line}" step)
  string(JSON event GET "${line}" event)
  list(APPEND steps ${event}${step})
endforeach()
set(once ${steps})
list(REMOVE_DUPLICATES once)
if(NOT steps STREQUAL once)
  message(SEND_ERROR "metrics.jsonl of a killed run repeats steps: ${steps}")
endif()

# A longer budget goes on; a changed model does not.
expect(0 "" ${PROGRAM} train --out whole --resume auto --train.steps 44 --quiet)
expect_files(whole/checkpoints/step-44/DONE)
expect(2 "model.layers 1, so it cannot go on with 2" ${PROGRAM} train --out whole --resume auto
       --model.layers 2 --quiet)

# Trouble names the step and saves what was before it.
expect(1 "the (loss|gradient) of step [0-9]+ (is|, )?.*saved as diverged/checkpoints/step-"
       ${train} --out diverged --train.learning_rate 1e18)
file(GLOB saved ${folder}/diverged/checkpoints/step-*/DONE)
if(NOT saved)
  message(SEND_ERROR "a diverged run saved nothing")
endif()

# An early stop.
expect(0 "" ${train} --out early --train.steps 4000 --train.learning_rate 0 --train.patience 2)
file(READ ${folder}/early/result.json result)
string(JSON end GET "${result}" end)
if(NOT end MATCHES "no gain in 2 evaluations")
  message(SEND_ERROR "an early stop says: ${end}")
endif()

# A user's own texts.
set(rows "text\tlabel\n")
foreach(i RANGE 1 60)
  string(APPEND rows "the film number ${i} was a joy to see\tgood\n")
  string(APPEND rows "nothing in part ${i} was worth the time\tbad\n")
endforeach()
file(WRITE ${folder}/films.tsv "${rows}")
foreach(tokens IN ITEMS bytes words sentencepiece)
  execute_process(COMMAND ${PROGRAM} train --task.name classify --task.train films.tsv
         --task.tokens ${tokens} --task.vocabulary 60 --model.layers 1 --model.embedding 32
         --model.inner 32 --model.heads 2 --train.batch 16 --train.steps 60
         --train.evaluate_every 20 --train.learning_rate 0.003 --out films-${tokens} --quiet
         WORKING_DIRECTORY ${folder} RESULT_VARIABLE result OUTPUT_QUIET
         ERROR_VARIABLE complained)
  if(tokens STREQUAL sentencepiece AND result EQUAL 2 AND
     complained MATCHES "this build has no SentencePiece")
    continue()
  endif()
  if(NOT result EQUAL 0)
    message(SEND_ERROR "training on ${tokens}: exit code ${result}\n${complained}")
  endif()
  expect(0 "right on test +100.0 %" ${PROGRAM} eval films-${tokens})
  expect(0 "\"label\":\"good\",\"probabilities\":{\"bad\":" ${PROGRAM} predict films-${tokens}
         "the film was a joy")
  expect(0 "\"label\":\"bad\"" ${PROGRAM} predict films-${tokens} "nothing worth the time")
endforeach()

# Pairs of texts.
set(pairs "")
foreach(i RANGE 1 40)
  string(APPEND pairs "1.0\ta${i}\tb${i}\taa aa ${i}\taa aa ${i} aa\n")
  string(APPEND pairs "0.0\ta${i}\tc${i}\taa aa ${i}\tzz zz zz zz\n")
endforeach()
foreach(part IN ITEMS train eval test)
  file(WRITE ${folder}/papers/tsv_data/new_aan_pairs.${part}.tsv "${pairs}")
endforeach()
foreach(head IN ITEMS concatenation interaction)
  expect(0 "right on the test set +100.0 %.*always the commonest label +50.0 %" ${PROGRAM} train
         --task.name retrieval --task.longest 20 --data papers --model.head ${head}
         --model.layers 1 --model.embedding 16 --model.heads 2 --model.inner 16
         --model.pooling mean --train.batch 16 --train.steps 60 --train.evaluate_every 20
         --train.learning_rate 0.01 --out papers-${head} --quiet)
  expect(0 "right on test +100.0 %" ${PROGRAM} eval papers-${head})
  expect(0 "\"label\":\"cited\"" ${PROGRAM} predict papers-${head} "aa aa 3\taa aa 3 aa")
  expect(1 "one tab must stand between" ${PROGRAM} predict papers-${head} "aa aa")
endforeach()
expect(2 "model.head must be concatenation or interaction for pairs of texts, got mlp"
       ${PROGRAM} train --task.name retrieval --data papers --out never --train.steps 1)

file(MAKE_DIRECTORY ${folder}/elsewhere)
file(WRITE ${folder}/elsewhere/films.tsv "${rows}another text\tgood\n")
expect(1 "the training file has changed since; judge on a file of its own by --file"
       ${PROGRAM} eval films-words --data elsewhere)
expect(0 "right on elsewhere/films.tsv" ${PROGRAM} eval films-words --file elsewhere/films.tsv)
