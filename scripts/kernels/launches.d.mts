export function plannedLaunch(
  name: string,
  arch: string,
): { readonly threads: number; readonly shared: number } | undefined;
