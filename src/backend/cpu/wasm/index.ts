/** What TypeScript calls. Each op of the backend is one exported function; see the files for their arguments. */
export { enter, scratchBytes, setThreads, work } from "./pool";
