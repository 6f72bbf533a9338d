/** The claim `sub` of a JWT, which the server has yet to verify. Undefined if the token has none, or is no JWT. */
export declare function subjectOf(token?: string): string | undefined;
