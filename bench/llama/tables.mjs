export const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

export function printTable(cells) {
  const widths = cells[0].map((_, c) => Math.max(...cells.map((row) => row[c].length)));
  for (const row of cells)
    console.log(
      row
        .map((cell, c) => cell.padEnd(widths[c]))
        .join("  ")
        .trimEnd(),
    );
}
