cmake_minimum_required(VERSION 3.25)

# What the program says of bad input: one line that begins with "longspan: " and the exit
# code, 2 for the command line and the configuration, 1 for what is found later. What was
# saved before stays as it was, and nothing half-written stays behind.
set(here ${BUILD}/bad_inputs)
file(REMOVE_RECURSE ${here})
file(MAKE_DIRECTORY ${here})
set(ENV{OMP_NUM_THREADS} 1)

# The folder that no refused training may leave behind.
set(never ${here}/never/run)

function(run code out err)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${here} INPUT_FILE /dev/null
                  RESULT_VARIABLE result OUTPUT_VARIABLE printed ERROR_VARIABLE complained)
  list(JOIN ARGN " " words)
  if(NOT result STREQUAL "${code}" OR NOT printed MATCHES "${out}" OR
     NOT complained MATCHES "${err}")
    message(SEND_ERROR "${words}\nexit code ${result}, expected ${code}; printed:\n"
                       "${printed}complained:\n${complained}expected: ${out} ${err}")
  endif()
  set(printed "${printed}" PARENT_SCOPE)
  set(complained "${complained}" PARENT_SCOPE)
endfunction()

function(works)
  run(0 "" "" ${PROGRAM} ${ARGN})
  set(printed "${printed}" PARENT_SCOPE)
  set(complained "${complained}" PARENT_SCOPE)
endfunction()

# A case: the exit code, what the message must have, and the arguments.
function(fails_as code message)
  run(${code} "^$" "${message}" ${ARGN})
  list(JOIN ARGN " " words)
  if(NOT complained MATCHES "^longspan: [^\n]*\n$")
    message(SEND_ERROR "${words}\ncomplained, but not in one line:\n${complained}")
  endif()
  if(complained MATCHES "longspan: longspan|std::|c10|torch|xception|terminate|conversion|[.]cpp")
    message(SEND_ERROR "${words}\ncomplained in words of the inside:\n${complained}")
  endif()
  if(EXISTS ${here}/never)
    message(SEND_ERROR "${words}\nleft ${never} behind")
    file(REMOVE_RECURSE ${here}/never)
  endif()
  set_property(GLOBAL APPEND PROPERTY cases x)
endfunction()

function(fails code message)
  fails_as(${code} "${message}" ${PROGRAM} ${ARGN})
endfunction()

# Contents of a configuration that a training must refuse.
function(config text message)
  file(WRITE ${here}/bad.yaml "${text}")
  fails(2 "${message}" train -c small.yaml -c bad.yaml --data listops --out ${never})
endfunction()

# A shell script; $PROGRAM is the program.
set(ENV{PROGRAM} ${PROGRAM})
function(shell script)
  execute_process(COMMAND sh -c "${script}" WORKING_DIRECTORY ${here} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Another bit in the middle of a file, or at byte `at`.
function(flip file at)
  shell("f=${file}; at=${at}; test $at -ge 0 || at=$(($(wc -c < $f) / 2))
         byte=$(od -An -tu1 -j $at -N 1 $f)
         printf \"\\\\$(printf %03o $((byte ^ 1)))\" |
           dd of=$f bs=1 seek=$at conv=notrunc 2> dd.log")
endfunction()

# Every byte of the good runs, and what they make of the test sets.
function(state variable)
  execute_process(COMMAND sh -c "find good texts -type f -exec cksum {} + | sort; readlink good/best texts/best"
                  WORKING_DIRECTORY ${here} OUTPUT_VARIABLE bytes COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} "${bytes}" PARENT_SCOPE)
endfunction()

# After a group of cases: both runs are what they were.
function(unharmed group)
  state(now)
  if(NOT now STREQUAL "${bytes_before}")
    message(SEND_ERROR "${group}: changed a good run\nbefore:\n${bytes_before}\nnow:\n${now}")
  endif()
endfunction()
function(evaluates group)
  foreach(name IN ITEMS good texts)
    works(eval ${name} --json)
    if(NOT printed STREQUAL "${${name}_score}")
      message(SEND_ERROR "${group}: ${name} scored ${${name}_score}now ${printed}")
    endif()
  endforeach()
endfunction()

# --- the good runs ---------------------------------------------------------------------

works(data listops --out listops --train 60 --valid 20 --test 20 --min-length 5
      --max-length 30)
works(data listops --out others --train 60 --valid 20 --test 20 --min-length 5
      --max-length 30 --seed 2)
file(WRITE ${here}/small.yaml
"model: {layers: 1, embedding: 16, heads: 2, inner: 16}
train: {steps: 6, batch: 8, evaluate_every: 2}
")
set(rows "text\tlabel\n")
set(other_rows "text\tlabel\n")
foreach(i RANGE 1 20)
  string(APPEND rows "a good day ${i}\tgood\na bad night ${i}\tbad\n")
  string(APPEND other_rows "some wine ${i}\tred\nsome milk ${i}\twhite\n")
endforeach()
file(WRITE ${here}/rows.tsv "${rows}")
file(WRITE ${here}/other.tsv "${other_rows}")
set(classify -c small.yaml --task.name classify)
works(train -c small.yaml --data listops --out good)
works(train ${classify} --task.train rows.tsv --task.tokens words --out texts)
foreach(name IN ITEMS good texts)
  works(eval ${name} --json)
  set(${name}_score "${printed}")
endforeach()
state(bytes_before)

# --- configuration files ---------------------------------------------------------------

config("task:\n  longst: 3\n" "bad.yaml, line 2: no key 'task.longst'; did you mean 'task.longest'")
config("model:\n  layer: 3\n" "bad.yaml, line 2: no key 'model.layer'; did you mean 'model.layers'")
config("train:\n  steps: 3\n  bach: 4\n" "bad.yaml, line 3: no key 'train.bach'; did you mean 'train.batch'")
config("layers: 3\n" "bad.yaml, line 1: no key 'layers'; did you mean 'model.layers'")
config("model:\n  steps: 3\n" "no key 'model.steps'; did you mean 'train.steps'")
config("model:\n  layers: two\n" "bad.yaml, line 2: model.layers must be a whole number between 1 and 10000, got two")
config("model:\n  recompute: 1\n" "model.recompute must be true or false, got 1")
config("train:\n  learning_rate: inf\n" "train.learning_rate must be a number of 0 or more, got inf")
config("model:\n  dropout: 1.5\n" "model.dropout must be a number between 0 and 0.99, got 1.5")
config("task:\n  data: [a, b]\n" "task.data must be a word, got .a, b.")
config("model:\n  norm: prae\n" "line 2: model.norm: no choice 'prae'; did you mean 'pre'. there are: pre, post, sandwich")
config("train: 3\n" "bad.yaml, line 1: 'train' must be a section with keys")
config("model: [1,\n" "bad.yaml, line [12]: this is not YAML")
config("model:\n  layers: 1\n  layers: 2\n" "bad.yaml, line 3: 'model.layers' is given twice")
config("model:\n  attention: {[a]: 1}\n" "bad.yaml, line 2: .*a key must be a word")
config("model:\n  attention: &a [*a]\n" "bad.yaml, line 2: .*nested too deep")
config("train: {steps: 1}\n---\ntrain: {steps: 2}\n" "bad.yaml: must be one YAML document, got 2")
config("model:\n  \"lay\\ners\": 1\n" "bad.yaml, line 2: no key 'model.lay ers'; did you mean 'model.layers'")
fails(2 "cannot read none.yaml: No such file" train -c none.yaml --data listops --out ${never})
fails(2 "cannot read listops: Is a directory" train -c listops --out ${never})
fails(2 "model.safetensors, line [0-9]+: " train -c good/best/model.safetensors --out ${never})

# --- parts of a configuration that do not fit ------------------------------------------

config("train: {schedule: warmup}\n" "train.schedule must be a list of factors.*got warmup")
config("train: {schedule: [warmpu]}\n" "train.schedule: no factor 'warmpu'; did you mean 'warmup'")
config("train: {schedule: [warmup]}\n" "train.schedule: warmup needs steps")
config("train: {groups: [{match: '*nrm*', rate: 1}]}\n" "train.groups: no parameter is called like '[*]nrm[*]'")
config("model: {by_layer: dense}\n" "model.by_layer must be a list of .*got dense")
config("model: {by_layer: [{at: 0-5, attention: dense}]}\n" "model.by_layer: at must be a layer or a range.*0-0, got 0-5")
config("model: {attention: dens}\n" "no mechanism called 'dens'; did you mean 'dense'")
config("model: {attention: {name: dense, windw: 3}}\n" "dense: no setting 'windw'")
config("model: {heads: 3}\n" "model.embedding, 16, is no multiple of model.heads, 3")
config("model: {heads: 4, key_heads: 3}\n" "heads.*4.*3|heads.*3.*4")
config("model: {longest: 5}\n" "model.longest, 5, is less than the longest sequence of the task, [0-9]+")
config("train: {steps: 0}\n" "training needs an end: train.steps, train.epochs, train.tokens or train.minutes")
config("train: {first_batch: 9, ramp_steps: 3}\n" "train.first_batch, 9, must not be more than train.batch, 8")
config("train: {first_batch: 2}\n" "train.first_batch needs train.ramp_steps")
execute_process(COMMAND ${PROGRAM} info OUTPUT_VARIABLE info)
if(info MATCHES "CUDA +not in this build")
  config("train: {device: cuda}\n" "train.device: this build has no CUDA.*take cpu")
endif()
fails(1 "no memory for a tensor of [0-9]+ bytes" train -c small.yaml --data listops
      --out ${never} --model.longest 1000000000 --model.positions learned
      --model.embedding 100000)  # more than addresses reach
unharmed("configurations")

# --- the command line ------------------------------------------------------------------

set(train train -c small.yaml --data listops --out ${never})
fails(2 "the command line: no key 'model.layrs'; did you mean 'model.layers'" ${train} --model.layrs 1)
fails(2 "--model.layers needs a value" ${train} --model.layers)
fails(2 "the command line: model.layers must be a whole number.*got two" ${train} --model.layers two)
fails(2 "the command line: train.schedule: '.name: ' is not YAML" ${train} --train.schedule "{name: ")
fails(2 "no option --moel; " ${train} --moel 2)
fails(2 "--config needs a value\n" train --model.layers 2 -c)
fails(2 "--threads.*1.*4096" train --model.layers 2 --threads 0)
fails(2 "--out is required: the folder of the run" train -c small.yaml --data listops)
fails(2 "listops needs the folder of its files: --data DIR" train -c small.yaml --out ${never})
fails(1 "cannot read none/basic_train.tsv: there is no such file there" train -c small.yaml --data none --out ${never})
# What is wrong with the options is told before the data is looked for.
set(images train --task.name cifar10 --data none --out ${never})
fails(2 "train.schedule: cosine begins at step 5, but the training has only 3 steps; raise train.steps or give cosine another start"
      ${images} --train.schedule "[{name: cosine, start: 5}]" --train.steps 3)
fails(2 "model.embedding, 256, is no multiple of model.heads, 3" ${images} --model.heads 3)
fails(2 "cannot go on with 2" train --out good --resume auto --data none --model.layers 2)
fails(1 "cannot read none/test_batch.bin: there is no such file there" ${images})
fails(1 "good holds a run already; --resume auto goes on with it, or choose another folder"
      train -c small.yaml --data listops --out good)
fails(1 "none: there is no such checkpoint" ${train} --resume none)
fails(1 "good has checkpoints up to step 6, so going on from good/checkpoints/step-4 needs another folder"
      train --out good --resume good/checkpoints/step-4)
fails(1 "cannot make the folder small.yaml/run: Not a directory"
      train -c small.yaml --data listops --out small.yaml/run)
fails(2 "--split.*tset.*train.*valid.*test" eval good --split tset)
fails(1 "none is no run: it has no config.yaml" eval none)
fails(1 "listops is no run: it has no config.yaml" predict listops "[MAX 1 2 ]")
fails(1 "there is no text to predict; give it as an argument, by --file or on standard input" predict good)
fails(2 "give texts or --file, not both; got '.MAX 1 2 .' and rows.tsv" predict good "[MAX 1 2 ]" --file rows.tsv)
fails(1 "text 2: ListOps: no token 'two'" predict good "[MAX 1 2 ]" "[MAX 1 two ]")
fails(1 "cannot read listops: Is a directory" predict good --file listops)
fails(2 "no option --foo" describe dense --foo)
fails(2 "--mechanisms is required" bench attention --lengths 16)
fails(2 "no mechanism called 'dens'; did you mean 'dense'" bench attention --mechanisms dens)
fails(2 "no mechanism called 'dens'; did you mean 'dense'" bench attention --mechanisms "dense, {name: dens}")
fails(2 "dense: no setting 'windw'" bench attention --mechanisms "{name: dense, windw: 3}")
fails(2 "dense: no preset 'base'" bench attention --mechanisms dense --preset base)
fails(2 "--mechanisms must be a list, separated by commas, got '.dense'" bench attention --mechanisms "{dense")
fails(2 "--mechanisms must be a list, separated by commas, got 'dense]'" bench attention --mechanisms "dense]")
fails(2 "--mechanisms must be one or more, separated by commas" bench attention --mechanisms " ")
fails(2 "--mechanisms must be the name of a mechanism or .name: .., setting: ..., got 3" bench attention --mechanisms 3)
set(lengths bench attention --mechanisms dense --lengths)
fails(2 "--lengths must be whole numbers between 1 and 16777216, got 0" ${lengths} 16,0)
fails(2 "--lengths must be whole numbers between 1 and 16777216, got 1.5" ${lengths} 1.5)
fails(2 "--lengths must be whole numbers between 1 and 16777216, got long" ${lengths} 16,long)
fails(2 "--type: half not in .float,bfloat16" ${lengths} 16 --type half)
fails(2 "--device must be cpu or cuda, got tpu" ${lengths} 16 --device tpu)
fails(2 "--turns: Value 0 not in range 1 to" ${lengths} 16 --turns 0)
fails(1 "cannot write small.yaml/speed.svg: Not a directory" ${lengths} 16 --plot small.yaml/speed.svg)
fails(1 "cannot write listops: Is a directory" ${lengths} 16 --plot listops)
fails(2 "a command is missing; see longspan paper --help" paper)
fails(2 "--lengths must be whole numbers between 1 and 16777216, got 0" paper combiner-figure3 --lengths 0)
fails(2 "--device must be cpu or cuda, got tpu" paper combiner-figure3 --device tpu)
fails(2 "--tasks must be of imdb-token, imdb-byte, listops, matching, got images" paper wide-table8 --tasks images)
fails(2 "--mechanisms must be of BigBird, .*Transformer, got dense" paper wide-table9 --mechanisms dense)
fails(2 "--passes: Value 0 not in range 1 to" paper wide-table9 --passes 0)
fails(2 "nowhere is no folder of runs" paper lra nowhere)
fails(1 "listops has no run that came to its end: no result.json in it or below" paper lra listops)
fails(2 "--picture draws one mechanism: longspan describe NAME --picture never/a.svg\n" describe --picture never/a.svg)
fails(2 "--picture draws one mechanism" describe -c small.yaml --picture never/a.svg)
fails(2 "--picture draws one mechanism" describe dense -c small.yaml --picture never/a.svg)
fails(2 "--tokens: Value 0 not in range 1 to 256" describe dense --picture never/a.svg --tokens 0)
fails(2 "--tokens: Value 257 not in range 1 to 256" describe dense --picture never/a.svg --tokens 257)
fails(2 "--tokens is for --picture FILE" describe dense --tokens 5)
fails(2 "--causal is for --picture FILE" describe dense --causal)
fails(2 "--settings must be like {window: 4}, got 4" describe dense --picture never/a.svg --settings 4)
fails(2 "'{a: ' is not YAML" describe dense --picture never/a.svg --settings "{a: ")
fails(2 "dense: no setting 'windw'" describe dense --picture never/a.svg --settings "{windw: 4}")
fails(2 "no mechanism called 'dens'" describe dens --picture never/a.svg)
fails(2 "--pages writes about all mechanisms; leave out names, -c and --picture" describe dense --pages never)
fails(1 "cannot write none/a.svg: No such file" describe dense --picture none/a.svg)
fails(1 "cannot write listops: Is a directory" describe dense --picture listops)
fails(1 "cannot make the folder small.yaml/pages: Not a directory" describe --pages small.yaml/pages)
fails_as(1 "cannot write to standard output" sh -c "exec $PROGRAM list > /dev/full")
unharmed("the command line")

# --- data ------------------------------------------------------------------------------

# A file that a training must refuse.
function(table name text message)
  file(WRITE ${here}/${name} "${text}")
  fails(1 "${name}${message}" train ${classify} --task.train ${name} --out ${never} ${ARGN})
endfunction()
string(ASCII 255 broken)
table(bad.tsv "txt\tlabel\na\tb\n" ", line 1: no column 'text'; did you mean 'txt'")
table(bad.tsv "text\tlabel\na\tb\na\n" ", line 3: must have 2 columns like line 1, got 1")
table(bad.tsv "text\tlabel\na\tb\n${broken}\tb\n" ", line 3: must be UTF-8, but byte 1, 0xff, is not")
table(bad.tsv "text\tlabel\na\t\n" ", line 2: the label is empty")
table(bad.tsv "text\tlabel\na\tx\nb\ty\n" ": too few rows to split: ")
string(REPLACE "bad\n" "good\n" one_label "${rows}")
table(bad.tsv "${one_label}" ": needs two labels or more, got only 'good'")
table(bad.csv "txt,label\na,b\n" ", line 1: no column 'text'")
table(bad.csv "text,label\na\n" ", line 2: must have 2 columns like line 1, got 1")
table(bad.csv "text,label\n\"a,b\n" ", line 2: a quote is not closed")
table(bad.csv "text,label\n${broken},b\n" ", line 2: must be UTF-8")
table(bad.csv "text,label\na,\n" ", line 2: the label is empty")
table(bad.jsonl "{\"txt\": \"a\", \"label\": \"b\"}\n" ", line 1: no key 'text'; did you mean 'txt'")
table(bad.jsonl "{\"text\": \"a\", \"label\": \"b\"}\n{\"text\"\n" ", line 2: must be one JSON object")
table(bad.jsonl "{\"text\": \"${broken}\", \"label\": \"b\"}\n" ", line 1: must be UTF-8")
table(bad.jsonl "{\"text\": \"a\", \"label\": \"\"}\n" ", line 1: the label is empty")
fails(2 "cannot tell the layout of small.yaml: its name must end in .tsv, .csv or .jsonl"
      train ${classify} --task.train small.yaml --out ${never})
fails(2 "the columns must be two names or two numbers, got text '1' and label 'label'"
      train ${classify} --task.train rows.tsv --task.text 1 --out ${never})
fails(2 "a model file is for sentencepiece only, got rows.tsv"
      train ${classify} --task.train rows.tsv --task.sentencepiece_model rows.tsv --out ${never})
fails(1 "other.tsv: no label 'red' was trained on" train ${classify}
      --task.train rows.tsv --task.valid other.tsv --out ${never})
fails(1 "other.tsv: no label 'red' was trained on.*bad, good" eval texts --file other.tsv)

# In the files of ListOps.
function(expressions text message)
  file(WRITE ${here}/bad.tsv "${text}")
  fails(1 "bad.tsv${message}" eval good --file bad.tsv)
endfunction()
set(header "Source\tTarget\n")
expressions("${header}( ( ( [MAX 1 ) 2 ) ] )\t3\n" ", line 2: the label is 3 but the expression gives 2")
expressions("${header}( ( ( [TOP 1 ) 2 ) ] )\t2\n" ", line 2: ListOps: no token '.TOP'")
expressions("( ( ( [MAX 1 ) 2 ) ] )\t2\n" ", line 1: must be 'Source', tab, 'Target', or a digit, tab, an expression, got ")
expressions("${header}" " has no examples")
expressions("" " is empty; it must begin with 'Source', tab, 'Target'")
file(COPY ${here}/listops/ DESTINATION ${here}/half)
file(REMOVE ${here}/half/basic_val.tsv)
fails(1 "cannot read half/basic_val.tsv: No such file.*longspan data listops --out DIR. makes such"
      train -c small.yaml --data half --out ${never})

# Running text.
set(text train -c small.yaml --task.name text --task.longest 16 --out ${never})
works(data text --out running --bytes 2000)
works(data tokens --train running/text.txt --out running)
set(ids --task.train running/train.ids --task.valid running/valid.ids)
fails(1 "cannot read no.txt: No such file" ${text} --task.train no.txt)
fails(1 "running/text.txt is there already" data text --out running)
fails(1 "running/train.ids is there already" data tokens --train running/text.txt --out running)
fails(2 "task.valid and task.test must be files of tokens as well" ${text} ${ids})
fails(2 "task.tokens is words, but running/train.ids holds bytes" ${text} ${ids}
      --task.test running/test.ids --task.tokens words)
fails(1 "running/text.txt is no file of tokens" ${text} ${ids} --task.test running/text.txt)
shell("head -c -10 running/test.ids > cut.ids; cp running/test.ids flipped.ids; : > empty.txt
       printf '<doc id=1>' > open.txt; mkdir -p hollow; cp running/text.txt fake.xz; cp fake.xz fake.gz")
flip(flipped.ids 40)
fails(1 "cut.ids is damaged or cut off; write it again" ${text} ${ids} --task.test cut.ids)
fails(1 "flipped.ids is damaged or cut off; write it again" ${text} ${ids} --task.test flipped.ids)
fails(1 "empty.txt: there is no text in it" ${text} --task.train empty.txt)
fails(1 "open.txt, line 1: the <doc> is not closed" ${text} --task.train open.txt)
fails(1 "the folder hollow has no files" ${text} --task.train hollow)
fails(1 "rows.tsv, line 1: no column 'body'" ${text} --task.train rows.tsv --task.text body)
foreach(format IN ITEMS xz gz)
  fails(1 "fake.${format} is not in |this build has no" ${text} --task.train fake.${format})
endforeach()
fails(2 "task.context, 16, must be less than task.longest, 16" ${text}
      --task.train running/text.txt --task.context 16)
fails(2 "task.valid_share and task.test_share must leave something" ${text}
      --task.train running/text.txt --task.valid_share 0.5 --task.test_share 0.5)
fails(2 "a model file is for sentencepiece only, got rows.tsv" ${text}
      --task.train running/text.txt --task.sentencepiece_model rows.tsv)
unharmed("data")

# --- checkpoints -----------------------------------------------------------------------

# Takes a copy of a checkpoint, damages it and must see it refused by evaluation and by
# training, or by training alone where only that reads the file.
function(damage message what)
  shell("rm -rf damaged && cp -a good/checkpoints/step-6 damaged")
  cmake_language(EVAL CODE "${what}")
  if(NOT "TRAINING" IN_LIST ARGN)
    fails(1 "${message}" eval good --checkpoint damaged)
  endif()
  fails(1 "${message}" train -c small.yaml --data listops --out ${never} --resume damaged)
endfunction()
damage("damaged/model.safetensors: differs from what was written; choose another"
       "shell(\"truncate -s -7 damaged/model.safetensors\")")
damage("damaged/model.safetensors: differs from what was written"
       "flip(damaged/model.safetensors -1)")
damage("damaged/optimizer.safetensors: differs from what was written"
       "flip(damaged/optimizer.safetensors -1)" TRAINING)
damage("damaged/state.json: differs from what was written"
       "flip(damaged/state.json -1)" TRAINING)
damage("damaged: DONE does not say what model.safetensors should be" "flip(damaged/DONE 6)")
damage("damaged: DONE does not say what model.safetensors should be"
       "file(WRITE ${here}/damaged/DONE \"yes\")" TRAINING)
damage("damaged: this checkpoint was not finished; choose another"
       "file(REMOVE ${here}/damaged/DONE)")
damage("cannot read damaged/state.json: No such file" "file(REMOVE ${here}/damaged/state.json)"
       TRAINING)
fails(1 "texts/best: .*(must be|lacks|has [0-9]+ tensors)" eval good --checkpoint texts/best)
fails(1 "good/best: lacks encoder.layer1.* is it the checkpoint of another model" train
      -c small.yaml --data listops --model.layers 2 --out ${never} --resume good/best)
fails(1 "good/best: was trained on other examples than these; give the same data" train
      -c small.yaml --data others --out ${never} --resume good/best)
unharmed("damaged checkpoints")

# Going on with other options or data.
fails(2 "good: the run was begun with model.layers 1, so it cannot go on with 2; begin another run in another folder"
      train --out good --resume auto --model.layers 2)
fails(1 "good/checkpoints/step-6: was trained on other examples than these; give the same data"
      train --out good --resume auto --data others --task.longest 29)
unharmed("going on otherwise")
file(COPY_FILE ${here}/rows.tsv ${here}/rows.kept)
file(COPY_FILE ${here}/other.tsv ${here}/rows.tsv)
fails(1 "texts/checkpoints/step-6: was trained on other examples than these" train --out texts --resume auto)
file(COPY_FILE ${here}/rows.kept ${here}/rows.tsv)
unharmed("going on with other labels")
find_program(flock flock)
if(flock)
  fails_as(1 "another process trains in good; choose another folder" ${flock} good ${PROGRAM}
           train --out good --resume auto --train.steps 8)
  unharmed("two trainings")
endif()

# What else a run is made of.
shell("cp -a texts broken && echo '[' > broken/labels.json")
fails(1 "broken: the saved labels are not a JSON list of two words or more" eval broken)
shell("cp texts/labels.json broken && echo nothing > broken/vocabulary")
fails(1 "broken: words: what was saved must begin with" predict broken "a good day")
shell("cp texts/vocabulary broken && echo 'model: {layers: none}' > broken/config.yaml")
fails(1 "broken/config.yaml, line 1: model.layers must be a whole number.*got none" eval broken)
fails(2 "broken/config.yaml, line 1: model.layers must be a whole number.*got none"
      train --out broken --resume auto)
shell("cp texts/config.yaml broken && rm broken/best")
fails(1 "broken has no best checkpoint yet" eval broken)

# A damaged checkpoint is passed over, and what is gone on from is not removed.
shell("cp -a good skips")
flip(skips/checkpoints/step-6/model.safetensors -1)
run(0 "" "skipped a checkpoint: skips/checkpoints/step-6/model.safetensors: differs.*goes on from skips/checkpoints/step-4\n.*step 6"
    ${PROGRAM} train --out skips --resume auto)
works(eval skips --checkpoint last --json)
string(REPLACE skips good skipped_score "${printed}")
works(eval good --checkpoint last --json)
if(NOT skipped_score STREQUAL printed)
  message(SEND_ERROR "step 6 again scored ${skipped_score}before ${printed}")
endif()
flip(skips/checkpoints/step-6/model.safetensors -1)
run(0 "" "goes on from skips/checkpoints/step-4\n" ${PROGRAM} train --out skips --resume auto
    --train.steps 5 --train.keep 1)
if(NOT EXISTS ${here}/skips/checkpoints/step-5/DONE)
  message(SEND_ERROR "the new checkpoint was removed in favour of a damaged one")
endif()

# --- disks -----------------------------------------------------------------------------

# A file may have 8 blocks: too few for the weights.
set(limited sh -c "ulimit -f 8 && exec \"$PROGRAM\" \"$@\"" longspan)
fails_as(1 "cannot write full/checkpoints/step-8.*/model.safetensors: File too large" sh -c
  "cp -a good full && ulimit -f 8 && exec $PROGRAM train --out full --resume auto --train.steps 8 --quiet")
foreach(step IN ITEMS 4 6)
  shell("cmp good/checkpoints/step-${step}/DONE full/checkpoints/step-${step}/DONE")
endforeach()
works(eval full --checkpoint last --json)
works(train --out full --resume auto --train.steps 8 --quiet)
works(eval full --checkpoint last --json)
if(NOT printed MATCHES "step-8")
  message(SEND_ERROR "the training did not go on after the disk was full: ${printed}")
endif()
fails_as(1 "cannot write new/checkpoints/step-2.*/model.safetensors: File too large" ${limited}
         train -c small.yaml --data listops --out new --quiet)
fails_as(1 "cannot write big/basic_train.tsv: File too large" ${limited} data listops
         --out big --train 500 --valid 2 --test 2 --min-length 5 --max-length 30)
file(GLOB written ${here}/big/*)
if(written)
  message(SEND_ERROR "a data set that did not fit left ${written}")
endif()
run(1 "tokens" "^longspan: cannot write speed.svg: File too large\n$" ${limited} bench attention
    --mechanisms dense --lengths 16,32,64,128 --turns 1 --plot speed.svg)
if(EXISTS ${here}/speed.svg)
  message(SEND_ERROR "a picture that did not fit left a piece")
endif()
fails(1 "small.yaml/data" data listops --out small.yaml/data --train 2 --valid 2 --test 2)
evaluates("disks")
unharmed("disks")
execute_process(COMMAND find ${here} -name "*unfinished*" OUTPUT_VARIABLE unfinished)
if(NOT unfinished STREQUAL "")
  message(SEND_ERROR "left unfinished:\n${unfinished}")
endif()

get_property(cases GLOBAL PROPERTY cases)
list(LENGTH cases count)
message(STATUS "${count} bad inputs")
