// The listing: the lines that contain the search text, with their indices.
function startListing() {
  const shown = document.querySelector("#listing pre"), search = document.querySelector("#listing input");
  const count = document.querySelector("#listing .count");
  const lines = shown.textContent.split("\n");
  const MOST = 3000;
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
    shown.textContent = found.slice(0, MOST).join("\n");
    count.textContent = wanted ? `${format(found.length)} of ${format(lines.length)} lines` : `${format(lines.length)} lines`;
  });
}
