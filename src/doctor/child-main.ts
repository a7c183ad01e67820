/** The entry of a child process: does the tasks it is sent, one at a time, until its parent leaves. */
import { perform, type Request } from "./tasks.ts";

process.on("message", (request: Request) => void perform(request, (message) => process.send?.(message)));
process.on("disconnect", () => process.exit());
