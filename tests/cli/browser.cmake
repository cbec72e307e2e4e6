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
    check(chart.querySelector("polyline, circle"), "a chart without curves");
    check(!/NaN|Infinity/i.test(chart.outerHTML), "a chart of what is no number");
    for (const text of chart.querySelectorAll("text"))
      check(text.getBoundingClientRect().left >= chart.getBoundingClientRect().left - 1,
            "words outside of a chart: " + text.textContent);
  }
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
foreach(page IN ITEMS arena/report.html some.html deep.html films-bytes.html)
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
