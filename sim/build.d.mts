/** Builds the simulator's libraries if their sources changed; rejects when there is no compiler or it fails. */
export function buildSim(): Promise<{ hip: string; rocblas: string; hipblaslt: string; miopen: string; built: boolean }>;
