"""The Equilibrium Explorer: a page on which one watches a picture and a caption come to an agreement."""
