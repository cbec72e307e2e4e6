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

# Not where weights depend on how many steps there are to be.
expect(0 "" ${PROGRAM} train ${small} --out shaped --train.steps 10 --train.schedule "[cosine]")
expect(2 "begun with train.steps 10, on which its train.schedule or train.full_share depends, so it cannot go on with 12"
       ${PROGRAM} train --out shaped --resume auto --train.steps 12 --quiet)
expect(0 "" ${PROGRAM} train ${small} --out longer --train.steps 12 --train.schedule "[cosine]"
       --resume shaped/checkpoints/step-10)

# Judged by several passes, where they differ.
expect(0 "" ${PROGRAM} train ${small} --out sampled --train.steps 10 --attention ssa)
foreach(samples IN ITEMS 0 3)
  expect(0 "" ${PROGRAM} eval sampled --samples ${samples} --json)
  string(JSON loss${samples} GET "${printed}" loss)
endforeach()
expect(0 "" ${PROGRAM} eval sampled --samples 3 --json --threads 1)
string(JSON again GET "${printed}" loss)
if(loss0 STREQUAL loss3 OR NOT again STREQUAL loss3)
  message(SEND_ERROR "eval --samples: ${loss0}, ${loss3} and again ${again}")
endif()
expect(1 "no mechanism of the model draws the keys it meets" ${PROGRAM} eval shaped --samples 3)

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

# Running text: read directly or from files of tokens, judged in batches of any size.
set(text ${PROGRAM} train --task.name text --data text --task.tokens words --task.longest 16
    --model.layers 1 --model.embedding 16 --model.heads 2 --model.inner 16 --train.batch 6
    --train.steps 12 --train.evaluate_every 6 --quiet)
expect(0 "text/text.txt: 6[0-9][0-9][0-9] bytes" ${PROGRAM} data text --out text --bytes 6000)
expect(0 "0 documents, [0-9]+ tokens" ${PROGRAM} data tokens --train text/text.txt --tokens words
       --out text)
foreach(goal IN ITEMS next masked)
  expect(0 "right on the test set" ${text} --task.train text.txt --task.goal ${goal}
         --out ${goal}-direct)
  expect(0 "right on the test set" ${text} --task.train train.ids --task.valid valid.ids
         --task.test test.ids --task.goal ${goal} --out ${goal}-tokens)
  expect_equal_runs(12 ${goal}-direct ${goal}-tokens)
  set(answers "")
  foreach(batch IN ITEMS 1 7)
    expect(0 "perplexity" ${PROGRAM} eval ${goal}-direct --batch ${batch} --json)
    string(JSON answered GET "${printed}" answers)
    string(JSON accuracy GET "${printed}" accuracy)
    list(APPEND answers ${answered}/${accuracy})
  endforeach()
  list(REMOVE_DUPLICATES answers)
  list(LENGTH answers count)
  if(NOT count EQUAL 1)
    message(SEND_ERROR "${goal}: eval depends on the size of batches: ${answers}")
  endif()
endforeach()
expect(0 "word perplexity" ${PROGRAM} eval next-direct --context 8)
expect(0 "word perplexity" ${PROGRAM} eval next-tokens --file text/text.txt)
file(WRITE ${folder}/rare.txt "Ada saw nobody else.\n")
expect(0 "unknown share" ${PROGRAM} eval next-tokens --file rare.txt)

# A vocabulary in bands; sizes that a mechanism takes from a length.
expect(0 "right on the test set" ${text} --task.train text.txt --model.cutoffs "[20, 40]"
       --attention blockwise --out bands)
expect(0 "word perplexity" ${PROGRAM} eval bands)
expect(0 "\n$" ${PROGRAM} generate bands "Ada saw" --tokens 12)

# What cannot be is said before anything is written.
set(rows "text\n")
foreach(i RANGE 1 30)
  string(APPEND rows "the text number ${i} of all\n")
endforeach()
file(WRITE ${folder}/text/documents.tsv "${rows}")
set(apart ${text} --task.train documents.tsv --task.documents apart --out apart)
expect(2 "task.documents: apart: linear: takes no segments" ${apart} --attention linear)
expect(2 "model.attention: mixed: bigbird" ${text} --task.train text.txt --attention mixed
       --model.heads 4 --out apart)
expect(2 "train.batch, 600, must be at most the [0-9]+ examples" ${text} --task.train text.txt
       --attention transformer_xl --model.positions none --train.batch 600 --out apart)
if(EXISTS ${folder}/apart)
  message(SEND_ERROR "a run that was refused left a folder")
endif()
expect(0 "right on the test set" ${apart})

# A language model of a user's text: it goes on with what it has read, and fills masks.
string(REPEAT "the cat sat on the mat. the dog ran to the man.\n" 150 lines)
file(WRITE ${folder}/mat.txt "${lines}")
set(train_text ${PROGRAM} train --task.name text --task.train mat.txt --task.longest 48
    --model.embedding 32 --model.heads 2 --model.inner 64 --model.dropout 0 --train.batch 8
    --train.learning_rate 0.01 --train.evaluate_every 100 --quiet)
expect(0 "" ${train_text} --model.layers 1 --model.positions rotary --train.steps 200 --out mat)
expect(0 "^the cat sat on the mat\\.\n$" ${PROGRAM} generate mat "the cat" --temperature 0
       --stop .)
expect(0 "\"prompt\":\"the cat sat on the mat. the d\",\"text\":\"og ra\",\"ids\":.112,104,33,115,98.,\"log_prob.*\"end\":\"length\""
       ${PROGRAM} generate mat "the cat sat on the mat. the d" "the" --temperature 0 --tokens 5)
set(drawn generate mat --temperature 3 --tokens 30)
foreach(seed IN ITEMS 1 2)
  expect(0 "" ${PROGRAM} ${drawn} --seed ${seed} "the" "mat" --samples 2)
  set(all_${seed} "${printed}")
endforeach()
expect(0 "" ${PROGRAM} ${drawn} --seed 1 "the" "mat" --samples 2 --batch 1 --threads 1)
foreach(all IN ITEMS printed all_1 all_2)  # but for rounding
  string(REGEX REPLACE "(-?[0-9]+\\.[0-9]+(e-[0-9]+)?)" "" ${all} "${${all}}")
endforeach()
if(NOT printed STREQUAL all_1 OR all_1 STREQUAL all_2)
  message(SEND_ERROR "what is drawn must depend on the seed alone:\n${printed}${all_1}${all_2}")
endif()
expect(1 "prompt 1 of 3 tokens and 60 new ones are more than the 48 that the model was made for"
       ${PROGRAM} generate mat "the" --tokens 60)
expect(0 "^the" ${PROGRAM} generate mat "the" --tokens 60 --beyond)
expect(0 "\n$" ${PROGRAM} generate mat --tokens 5)
expect(1 "text gives texts no labels; `generate` continues them" ${PROGRAM} predict mat "the")
expect(0 "" ${train_text} --task.goal masked --task.pairs false --model.layers 2
       --model.positions t5 --train.batch 16 --train.learning_rate 0.005 --train.steps 400
       --out masked)
expect(0 "\"filled\":\"the cat sat on the mat. the dog ran\",\"masks\":...\"token\":\"a\",\"probability\":"
       ${PROGRAM} predict masked "the c<>t sat on the m<>t. the dog ran" --mask <> --guesses 2)
string(REPEAT "the cat sat on the mat\nthe dog ran to the man\nthe cow lay in the hay\n" 60 lines)
file(WRITE ${folder}/lines.tsv "text\n${lines}")
expect(0 "" ${train_text} --task.train lines.tsv --task.tokens words --task.longest 14
       --task.goal masked --task.pairs false --model.layers 2 --model.positions t5
       --train.learning_rate 0.005 --train.steps 300 --out words)
expect(0 "\"filled\":\"the cat sat on the mat\",\"masks\":...\"token\":\"sat\"" ${PROGRAM} predict
       words "the cat [MASK] on the mat")
expect(0 "\"filled\":\"the dog ran to the man\"" ${PROGRAM} predict words
       "the dog ran to the [MASK]")
expect(1 "text 1: there is no .MASK. in it to be filled" ${PROGRAM} predict masked "the")
expect(1 "masked is a run of the task text, whose model continues no text; `longspan predict` asks it"
       ${PROGRAM} generate masked "the")
expect(1 "early is a run of the task listops, whose model continues no text"
       ${PROGRAM} generate early "[MAX 1 2 ]")

# The most that decoding keeps, also where the context ends a block.
set(sizes "")
expect(0 "state_bytes" ${PROGRAM} bench decode --mechanisms "{name: local, block: 16}"
       --contexts 64,90 --tokens 2 --layers 1 --embedding 16 --heads 2 --json)
string(REGEX MATCHALL "\"state_bytes\":[0-9]+" sizes "${printed}")
list(REMOVE_DUPLICATES sizes)
list(LENGTH sizes count)
if(NOT count EQUAL 1 OR sizes MATCHES ":0$")
  message(SEND_ERROR "a block's state at its largest, at any context: ${sizes}")
endif()
expect(1 "bigbird at 16: .*no causal form" ${PROGRAM} bench decode
       --mechanisms bigbird --contexts 16 --tokens 1)
