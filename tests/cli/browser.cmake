cmake_minimum_required(VERSION 3.25)

# The pages that cli/report left are shown by Chromium as they are meant: without errors,
# with every chart and picture, tables that sort, and nothing from elsewhere.
find_program(CHROMIUM NAMES chromium chromium-browser google-chrome)
if(NOT CHROMIUM)
  message("skipped: there is no Chromium; tools/install-packages tools/ci-packages.txt installs it")
  return()
endif()

set(before [=[<head>
<script>
window.faults = [];
addEventListener("error", event =>
    window.faults.push(event.message || "cannot load a " + event.target.tagName), true);
</script>]=])
set(after [=[<script>
addEventListener("load", () => {
  const faults = window.faults, all = query => [...document.querySelectorAll(query)];
  const check = (fine, what) => { if (!fine) faults.push(what); };
  for (const chart of all("svg.chart")) {
    check(chart.getBoundingClientRect().height > 100, "a chart without size");
    check(chart.querySelector("polyline, .bubble"), "a chart without curves");
    check(!/NaN|Infinity/i.test(chart.outerHTML), "a chart of what is no number");
    const place = chart.getBoundingClientRect(), texts = [...chart.querySelectorAll("text")];
    const boxes = texts.map(text => text.getBoundingClientRect());
    for (const [i, box] of boxes.entries()) {
      check(box.left >= place.left - 1 && box.right <= place.right + 1 &&
            box.top >= place.top - 1 && box.bottom <= place.bottom + 1,
            "words outside of a chart: " + texts[i].textContent);
      // Lines of text are higher than what is written.
      for (let j = 0; j < i; ++j)
        check(box.right <= boxes[j].left + 2 || boxes[j].right <= box.left + 2 ||
              box.bottom <= boxes[j].top + 4 || boxes[j].bottom <= box.top + 4,
              texts[i].textContent + " lies on " + texts[j].textContent);
    }
  }
  for (const part of all(".wide"))
    check(part.scrollWidth <= part.clientWidth + 1, "a table wider than its place");
  for (const image of all("img"))
    check(image.complete && image.naturalWidth > 50, "a broken picture: " + image.alt);
  for (const part of all("[src], link[href]"))
    check((part.getAttribute("src") || part.getAttribute("href")).startsWith("data:"),
          "something from elsewhere");
  for (const link of all("nav a"))
    check(document.querySelector(link.getAttribute("href")), "a link to nowhere");
  for (const table of all("table.sortable")) {
    const button = table.querySelector("thead .number button");
    if (!button) continue;
    const numbers = () => [...table.tBodies[0].rows]
        .map(row => row.cells[button.parentElement.cellIndex].dataset.number)
        .filter(number => number !== undefined).map(Number);
    for (const order of [(a, b) => b - a, (a, b) => a - b]) {
      button.click();
      check(String(numbers()) === String(numbers().sort(order)), "a table does not sort");
    }
  }
  check(document.documentElement.scrollWidth <= innerWidth, "the page is too wide");
  check(all("section").length > 0, "the page is empty");
  document.documentElement.dataset.checked = faults.length ? faults.join("; ") : "fine";
});
</script>
</body>]=])

set(folder ${BUILD}/report)
foreach(page IN ITEMS arena/report.html some.html crowd.html deep.html films-bytes.html
        cached.html pairs.html)
  file(READ ${folder}/${page} html)
  string(REPLACE "<head>" "${before}" html "${html}")
  string(REPLACE "</body>" "${after}" html "${html}")
  file(WRITE ${folder}/checked.html "${html}")
  execute_process(COMMAND ${CHROMIUM} --headless --no-sandbox --disable-gpu --no-first-run
                          --disable-dev-shm-usage --window-size=1280,900
                          --user-data-dir=${folder}/browser --virtual-time-budget=5000
                          --dump-dom file://${folder}/checked.html
                  RESULT_VARIABLE result OUTPUT_VARIABLE shown ERROR_VARIABLE complained
                  TIMEOUT 120)
  if(NOT shown MATCHES "data-checked=\"([^\"]*)\"")
    message(SEND_ERROR "${page}: Chromium shows no page (${result}):\n${complained}")
  elseif(NOT CMAKE_MATCH_1 STREQUAL "fine")
    message(SEND_ERROR "${page}: ${CMAKE_MATCH_1}")
  endif()
endforeach()
