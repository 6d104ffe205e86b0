"""Discovery in bulk over an index: many queries in one pass, for one entity or the operator, now or at a past moment. Each topic is asked by the
queries' own matchers (`tdn/queries`), of which clues leave few to ask."""
