/** Each chart's file and text; `read` gives the text of a JSON file. */
export function drawCharts(read: (file: string) => string): [file: string, svg: string][];
