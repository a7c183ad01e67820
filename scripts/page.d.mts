export declare function buildPage(folder: string): Promise<void>;
