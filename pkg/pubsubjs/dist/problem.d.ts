/** A refusal of the server (RFC 9457), or of this client. Programs decide by `code`. */
export declare class Problem extends Error {
    code: string;
    /** The HTTP status; 0 if the client found the problem. `message` says what is wrong, and the remedy. */
    status: number;
    /** What to change. */
    remedy?: string;
    /** How long to wait before a retry. */
    retryAfterMs?: number;
    constructor(code: string, detail: string, status?: number, said?: {
        remedy?: string;
        retry_after_ms?: number;
    });
}
