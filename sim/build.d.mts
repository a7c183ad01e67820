/** Builds the simulator's libraries if their sources changed; throws when there is no compiler or it fails. */
export function buildSim(): { hip: string; rocblas: string; hipblaslt: string; miopen: string; built: boolean };
